"""Reads official files as users download them: JSONL, JSON, CSV, XLSX.
A record that is broken, half or another's is one line that says where.

A benchmark says by a pydantic model what its records hold; further fields are left alone.
"""

import base64
import csv
import io
import json
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from arenarl.system.errors import UserError
from arenarl.system.user_input import first_problem, lines_of
from arenarl.trajectory import MAX_RECORD_NESTING, parse_json, storable

Written = Annotated[str, StringConstraints(min_length=1, strip_whitespace=False)]  # text that is not empty
_LARGEST_FIELD = 1 << 26  # characters of a CSV field


class Record(BaseModel):
    """An official record."""

    model_config = ConfigDict(extra="ignore", coerce_numbers_to_str=True)


R = TypeVar("R", bound=Record)


def official_file(path: Path, places: tuple[str, ...]) -> Path:
    """The file itself, or the first of `places` in a folder. Raises UserError where there is none."""
    if path.is_file():
        return path
    if found := next((path / place for place in places if (path / place).is_file()), None):
        return found
    wrong = f"is a folder without {' or '.join(places)}" if path.exists() else "does not exist"
    raise UserError(f"{path} {wrong}; --benchmark NAME=FILE takes the benchmark's file, or a copy of its repository")


def read_records(path: Path, record_type: type[R], unique: str | None = None) -> list[R]:
    """The records of a file.

    Args:
        unique: the field that tells items apart, if they have one.

    Raises:
        UserError: with file, line and field: what is no record, a field that is missing or wrong,
            a value of `unique` that stands twice.
    """
    records, places = [], {}
    for place, row in _rows(path):
        try:
            record = record_type.model_validate(row)
        except ValidationError as error:
            has = "it is no object"
            if isinstance(row, dict):
                has = f"it has {', '.join(map(str, list(row)[:8])) or 'no fields'}"
            how = "is it this benchmark's file, and whole?"
            raise UserError(f"{path}, {place}: {first_problem(error)} ({has}); {how}") from error
        value = getattr(record, unique) if unique else place
        if value in places:
            raise UserError(f"{path}, {place}: {unique} is the same as in {places[value]}; each item must stand once")
        places[value] = place
        records.append(record)
    if not records:
        raise UserError(f"{path} holds no records; download it again")
    return records


def decrypted(text: str, key: bytes, where: str) -> str:
    """Undo how benchmarks hide items from crawlers: XOR with a repeated key, in base64. `where` names the field.
    Raises UserError if the result is not text."""
    try:
        data = base64.b64decode(text, validate=True)
        return bytes(byte ^ key[place % len(key)] for place, byte in enumerate(data)).decode("utf-8")
    except ValueError as error:
        reason = "the canary does not fit, or the field is not encrypted as the official file is"
        raise UserError(f"{where} cannot be decrypted: {reason}; download it again") from error


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """(line, record as it stands)."""
    match path.suffix:
        case ".csv":
            yield from _csv_rows(path)
        case ".xlsx":
            yield from _xlsx_rows(path)
        case ".json":
            rows = _parsed("".join(lines_of(path)), str(path))
            if not isinstance(rows, list):
                raise UserError(f"{path} is no list of records; is it this benchmark's file?")
            yield from ((f"record {number}", row) for number, row in enumerate(rows, start=1))
        case _:
            for number, line in enumerate(lines_of(path), start=1):
                if line.strip():
                    yield f"line {number}", _parsed(line, f"{path}, line {number}")


def _parsed(text: str, where: str) -> Any:
    try:
        parsed = parse_json(text, MAX_RECORD_NESTING)
        return json.loads(storable(json.dumps(parsed, ensure_ascii=False)))
    except ValueError as error:
        raise UserError(f"{where} is not JSON: {error}; is the file whole? download it again") from error


def _csv_rows(path: Path) -> Iterator[tuple[str, Any]]:
    before = csv.field_size_limit(_LARGEST_FIELD)
    reader = csv.DictReader(io.StringIO("".join(lines_of(path, "utf-8-sig")), newline=""), strict=True)
    try:
        for row in reader:
            yield f"line {reader.line_num}", _stated(row.items())
    except csv.Error as error:
        where = f"{path}, line {reader.reader.line_num}"
        raise UserError(f"{where} is not CSV: {error}; is the file whole? download it again") from error
    finally:
        csv.field_size_limit(before)


def _xlsx_rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        import openpyxl
    except ImportError as error:
        how = "pip install openpyxl, or save the sheet as CSV"
        raise UserError(f"{path}: xlsx needs the package openpyxl; {how}") from error
    try:
        sheet = openpyxl.load_workbook(path, read_only=True, data_only=True).active
        head, *rows = sheet.iter_rows(values_only=True)
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
        raise UserError(f"{path} is no xlsx file with a row of names ({error}); download it again") from error
    for number, row in enumerate(rows, start=2):
        yield f"line {number}", _stated(zip(head, row, strict=False))


def _stated(cells: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    return {name: value for name, value in cells if name is not None and value is not None}
