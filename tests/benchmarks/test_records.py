"""Files as users have them: whole, cut, broken, encrypted, inflating, another benchmark's."""

import io
import random
import zipfile

import pytest
from benchmark_files import hidden, write_csv

from arenarl.benchmarks.questions import BrowseCompZH
from arenarl.benchmarks.records import Record, Written, read_records
from arenarl.system.errors import UserError


class _Pair(Record):
    problem: Written
    answer: Written


@pytest.mark.parametrize(("name", "content", "line"), [
    ("a.csv", b"problem,answer\nx,y\nz\n", "a.csv, line 3: answer Field required"),
    ("a.csv", b'problem,answer\nx,"half', "a.csv, line 2 is not CSV"),
    ("a.csv", b"question;answer\nx;y\n", "a.csv, line 2: problem Field required"),
    ("a.csv", b"problem,answer\nx,\n", "a.csv, line 2: answer Value error, is blank"),
    ("a.csv", b'problem,answer\n" \xe2\x80\x8b\xc2\xa0",y\n', "a.csv, line 2: problem Value error, is blank"),
    ("a.JSON", b'[{"problem": "x", "answer": " "}]', "a.JSON, record 1: answer Value error, is blank"),
    ("a.csv", b"problem,answer\n\xff\xfe,y\n", "a.csv is not UTF-8"),
    ("a.jsonl", b'{"problem": "x", "answer": "y"}\n\n{"problem": "z"', "a.jsonl, line 3 is not JSON"),
    ("a.jsonl", b'["x", "y"]\n', "a.jsonl, line 1:  ?Input should be .*the record has no fields"),
    ("a.json", b'{"problem": "x"}', "a.json is not a list of records"),
    ("a.json", b'[{"problem": "x", "answer": "y"}, {}]', "a.json, record 2: problem Field required"),
    ("a.jsonl", b"", "a.jsonl holds no records"),
    ("a.jsonl", b"[" * 5000, "a.jsonl, line 1 is not JSON"),
])  # fmt: skip
def test_a_one_line_error_names_file_line_and_field(tmp_path, name, content, line):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=line) as error:
        read_records(tmp_path / name, _Pair, "problem")
    assert "\n" not in str(error.value)


def test_a_csv_with_byte_order_mark_long_fields_and_line_breaks_is_read(tmp_path):
    (tmp_path / "a.csv").write_bytes(f'\ufeffproblem,answer\n"two\nlines","{"x" * 300_000}"\n'.encode())
    (record,) = read_records(tmp_path / "a.csv", _Pair, "problem")
    assert record.problem == "two\nlines" and len(record.answer) == 300_000


def test_a_decrypted_list_is_read_as_it_is_and_a_broken_sheet_refused(tmp_path):
    for name in ("zh.json", "plain.JSON"):
        (tmp_path / name).write_text('[{"Topic": "t", "Question": "问", "Answer": "答"}]', encoding="utf-8")
        (item,) = BrowseCompZH().read(tmp_path / name)
        assert (item.query, item.fields, item.language) == ("问", {"answer": "答"}, "zh")
    with pytest.raises(UserError, match="zh.csv, record 1: Question is blank when decrypted"):
        write_csv(tmp_path / "zh.csv", [{"Question": hidden(" ", "k"), "Answer": hidden("a", "k"), "canary": "k"}])
        BrowseCompZH().read(tmp_path / "zh.csv")


PAIRS = [("p", "a"), ("问题", "答"), ("Third?", "c")]


@pytest.fixture(scope="module")
def sheet():
    """Return the bytes of an xlsx file with PAIRS."""
    openpyxl = pytest.importorskip("openpyxl", reason="pip install openpyxl")
    book, file = openpyxl.Workbook(), io.BytesIO()
    for row in [("problem", "answer"), *PAIRS, ("", None)]:
        book.active.append(row)
    book.save(file)
    return file.getvalue()


def changed(sheet, name="xl/worksheets/sheet1.xml", *change):
    """Return the sheet with a text of one of its parts replaced."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(sheet)) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for part in old.namelist():
            text = old.read(part)
            new.writestr(part, text.replace(*change) if part == name else text)
    return file.getvalue()


def read_sheet(path, content):
    path.write_bytes(content)
    return [(record.problem, record.answer) for record in read_records(path, _Pair)]


def test_no_damage_of_an_xlsx_file_ends_in_another_error_than_one_line(sheet, tmp_path):
    path, rng = tmp_path / "a.xlsx", random.Random(0)
    assert read_sheet(path, sheet) == PAIRS
    damaged = [sheet[: rng.randrange(len(sheet))] for _ in range(15)]
    for _ in range(60):
        content = bytearray(sheet)
        for place in rng.choices(range(len(sheet)), k=rng.choice((1, 8, 100))):
            content[place] = rng.randrange(256)
        damaged.append(bytes(content))
    parts = zipfile.ZipFile(io.BytesIO(sheet)).namelist()
    damaged += [changed(sheet, part, *change) for part in parts for change in ((b"<", b"", 3), (b'"1"', b'"-1e9"'))]
    for content in damaged:
        try:
            read_sheet(path, content)
        except UserError as error:
            assert str(path) in str(error) and "\n" not in str(error)


def test_an_encrypted_or_inflating_xlsx_file_is_refused_in_little_memory(sheet, tmp_path):
    far = b'<row r="99999999"><c r="XFD99999999" t="inlineStr"><is><t>x</t></is></c></row>'
    wide = b"".join(b'<row r="%d"><c r="XFD%d"><v>1</v></c></row>' % (row, row) for row in range(7, 1007))
    cases = {
        "is encrypted": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600),
        "encrypted with": sheet.replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"),
        "unpacks to 40,0": changed(sheet, "xl/styles.xml", b"<styleSheet", b" " * 40_000_000 + b"<styleSheet"),
        "too many cells": changed(sheet, "xl/worksheets/sheet1.xml", b"</sheetData>", far + b"</sheetData>"),
        "the sheet has too": changed(sheet, "xl/worksheets/sheet1.xml", b"</sheetData>", wide + b"</sheetData>"),
        "row of names": changed(sheet, "xl/worksheets/sheet1.xml", b'<row r="1"', b'<row r="9"'),
    }  # fmt: skip
    for problem, content in cases.items():
        with pytest.raises(UserError, match=problem):
            read_sheet(tmp_path / "a.xlsx", content)
    as_wide = changed(sheet, "xl/worksheets/sheet1.xml", b'ref="A1:B5"', b'ref="A1:XFD1048576"')
    assert as_wide != sheet and read_sheet(tmp_path / "a.xlsx", as_wide) == PAIRS
