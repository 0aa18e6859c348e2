"""Reads official files as users download them: JSONL, JSON, CSV, XLSX.
A record that is broken, half or another's is one line that says where.

A benchmark says by a pydantic model what its records hold; further fields are left alone.
"""

import csv
import io
import json
import zipfile
from collections.abc import Callable, Iterator
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
    if not path.exists():
        raise UserError(
            f"{path} does not exist; name the benchmark's file, or a copy of its repository, as --benchmark NAME=FILE"
        )
    if path.is_file():
        return path
    if found := next((path / place for place in places if (path / place).is_file()), None):
        return found
    raise UserError(
        f"{path} is a folder without {' or '.join(places)}; name the benchmark's file, or a copy of its repository"
    )


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
            has = (
                f"it has {', '.join(map(str, list(row)[:8])) or 'no fields'}"
                if isinstance(row, dict)
                else "it is no object"
            )
            raise UserError(
                f"{path}, {place}: {first_problem(error)} ({has}); is it this benchmark's file, and whole?"
            ) from error
        value = getattr(record, unique) if unique else place
        if value in places:
            raise UserError(f"{path}, {place}: {unique} is the same as in {places[value]}; each item must stand once")
        places[value] = place
        records.append(record)
    if not records:
        raise UserError(f"{path} holds no records; download it again")
    return records


def decrypted(path: Path, number: int, field: str, decrypt: Callable[[], str]) -> str:
    """What `decrypt` makes of a field of record `number`, from 0. Raises UserError with file, record and field."""
    try:
        return decrypt()
    except ValueError as error:
        reason = "the canary does not fit, or the field is not encrypted as the official file is"
        raise UserError(
            f"{path}, record {number + 1}: {field} cannot be decrypted: {reason}; download it again"
        ) from error


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """(line, record as it stands)."""
    if path.suffix == ".csv":
        return _csv_rows(path)
    if path.suffix == ".xlsx":
        return _xlsx_rows(path)
    return _json_rows(path) if path.suffix == ".json" else _jsonl_rows(path)


def _jsonl_rows(path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines_of(path), start=1):
        if line.strip():
            yield f"line {number}", _parsed(line, path, f"line {number}")


def _json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    rows = _parsed("".join(lines_of(path)), path, "")
    if not isinstance(rows, list):
        raise UserError(f"{path} is no list of records; is it this benchmark's file?")
    yield from ((f"record {number}", row) for number, row in enumerate(rows, start=1))


def _parsed(text: str, path: Path, place: str) -> Any:
    try:
        parsed = parse_json(text, MAX_RECORD_NESTING)
        return json.loads(storable(json.dumps(parsed, ensure_ascii=False)))
    except ValueError as error:
        raise UserError(
            f"{path}{place and f', {place}'} is not JSON: {error}; is the file whole? download it again"
        ) from error


def _csv_rows(path: Path) -> Iterator[tuple[str, Any]]:
    before = csv.field_size_limit(_LARGEST_FIELD)
    text = io.StringIO("".join(lines_of(path, "utf-8-sig")), newline="")
    reader = csv.DictReader(text, strict=True)
    try:
        for row in reader:
            yield (
                f"line {reader.line_num}",
                {name: value for name, value in row.items() if name is not None and value is not None},
            )
    except csv.Error as error:
        raise UserError(
            f"{path}, line {reader.reader.line_num} is not CSV: {error}; is the file whole? download it again"
        ) from error
    finally:
        csv.field_size_limit(before)


def _xlsx_rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        import openpyxl
    except ImportError as error:
        raise UserError(
            f"{path}: xlsx needs the package openpyxl; pip install openpyxl, or save the sheet as CSV"
        ) from error
    try:
        sheet = openpyxl.load_workbook(path, read_only=True, data_only=True).active
        head, *rows = sheet.iter_rows(values_only=True)
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
        raise UserError(f"{path} is no xlsx file with a row of names ({error}); download it again") from error
    for number, row in enumerate(rows, start=2):
        yield (
            f"line {number}",
            {name: value for name, value in zip(head, row, strict=False) if name is not None and value is not None},
        )
