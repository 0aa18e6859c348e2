"""Read official files as users download them: JSONL, JSON, CSV, XLSX.

A benchmark describes its records by a pydantic model, which ignores other fields. A broken, cut or foreign record is an
error that names file, line and field.
"""

import base64
import csv
import io
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from arenarl.system.errors import UserError, missing, one_line
from arenarl.system.user_input import check_zip, first_problem, lines_of, text_of_file
from arenarl.trajectory import MAX_RECORD_NESTING, composed, is_blank, json_problem, parse_json, storable_json


def _check_written(text: str) -> str:
    if is_blank(text):
        raise ValueError("is blank")
    return text


Written = Annotated[str, AfterValidator(_check_written)]  # a text with a visible character
_LARGEST_FIELD = 1 << 26  # characters of a CSV field
_LARGEST_SHEET = 1 << 25  # bytes of an xlsx file, unpacked
_MOST_CELLS = 1 << 20  # of a sheet, with the empty cells between; the official file has 2,000


class Record(BaseModel):
    """An official record."""

    model_config = ConfigDict(extra="ignore", coerce_numbers_to_str=True)


R = TypeVar("R", bound=Record)


def official_file(path: Path, places: tuple[str, ...]) -> Path:
    """Return the path if it is a file, else the first of `places` in the folder. Raises UserError without a file."""
    if path.is_file():
        return path
    if file := next((path / place for place in places if (path / place).is_file()), None):
        return file
    how = "; --benchmark NAME=FILE takes the benchmark's file, or a copy of its repository"
    if path.exists():
        raise UserError(f"{path} is a folder without {' or '.join(places)}{how}")
    raise UserError(missing(path, how))


def read_records(path: Path, record_type: type[R], unique: str | None = None) -> list[R]:
    """Read the records of a file; the field `unique` identifies an item, if there is one.
    Raises UserError, with file, line and field, for a wrong record, a repeated value of `unique`, or no records."""
    records: dict[Any, tuple[str, R]] = {}
    for place, row in _rows(path):
        try:
            record = record_type.model_validate(row)
        except ValidationError as error:
            names = ", ".join(map(str, [*row][:8] if isinstance(row, dict) else [])) or "no fields"
            problem = f"{first_problem(error)} (the record has {names})"
            raise UserError(f"{path}, {place}: {problem}; use the complete file of this benchmark") from error
        value = composed(getattr(record, unique)) if unique else place
        if value in records:
            raise UserError(f"{path}, {place}: {unique} is the same as in {records[value][0]}; remove one record")
        records[value] = place, record
    if not records:
        raise UserError(f"{path} holds no records; download it again")
    return [record for _, record in records.values()]


def decrypted(text: str, key: bytes, where: str) -> str:
    """Decrypt a field that is hidden from crawlers by XOR with a repeated key, in base64.
    Raises UserError, beginning with `where`, if the result is blank or not text."""
    try:
        data = base64.b64decode(text, validate=True)
        plain = bytes(byte ^ key[place % len(key)] for place, byte in enumerate(data)).decode("utf-8")
    except ValueError as error:
        problem = "cannot be decrypted: the canary is wrong, or the field is not encrypted like the official file"
        raise UserError(f"{where} {problem}; download it again") from error
    if is_blank(plain):
        raise UserError(f"{where} is blank when decrypted; download it again")
    return plain


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (line, raw record)."""
    match path.suffix.lower():
        case ".csv":
            yield from _csv_rows(path)
        case ".xlsx":
            yield from _xlsx_rows(path)
        case ".json":
            rows = _parse(text_of_file(path), str(path))
            if not isinstance(rows, list):
                raise UserError(f"{path} is not a list of records; use this benchmark's file")
            yield from ((f"record {number}", row) for number, row in enumerate(rows, start=1))
        case _:
            for number, line in enumerate(lines_of(path), start=1):
                if line.strip():
                    yield f"line {number}", _parse(line, f"{path}, line {number}")


def _parse(text: str, where: str) -> Any:
    try:
        return storable_json(parse_json(text, MAX_RECORD_NESTING))
    except ValueError as error:
        raise UserError(f"{where} is not JSON: {json_problem(error)}; download the file again") from error


def _csv_rows(path: Path) -> Iterator[tuple[str, Any]]:
    before = csv.field_size_limit(_LARGEST_FIELD)
    reader = csv.DictReader(io.StringIO(text_of_file(path), newline=""), strict=True)
    try:
        for row in reader:
            yield f"line {reader.line_num}", _filled_cells(row.items())
    except csv.Error as error:
        where = f"{path}, line {reader.reader.line_num}"
        raise UserError(f"{where} is not CSV: {error}; download the file again") from error
    finally:
        csv.field_size_limit(before)


def _xlsx_rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        import openpyxl
    except ImportError as error:
        remedy = "pip install openpyxl, or save the sheet as CSV"
        raise UserError(f"{path}: xlsx needs the package openpyxl; {remedy}") from error
    check_zip(path, _LARGEST_SHEET)
    try:
        with closing(openpyxl.load_workbook(path, read_only=True, data_only=True)) as book:
            sheet, cells = book.active, 0
            sheet.reset_dimensions()  # the stated size may be wrong, and rows would be filled up to it
            rows = sheet.iter_rows(values_only=True)
            head = next(rows, ())
            if not any(isinstance(name, str) for name in head):
                raise UserError(f"{path} is not a sheet with a row of names; download it again")
            for number, row in enumerate(rows, start=2):
                cells += max(1, len(row))
                if cells > _MOST_CELLS:
                    raise UserError(f"{path}, line {number}: the sheet has too many cells; use the official file")
                if filled := _filled_cells(zip(head, row, strict=False)):
                    yield f"line {number}", filled
    except (UserError, MemoryError):
        raise
    except Exception as error:  # openpyxl raises errors of many types for a broken file
        raise UserError(f"{path} is not an xlsx file ({one_line(error)}); download it again") from error


def _filled_cells(cells: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    return {str(name): value for name, value in cells if name is not None and value is not None}
