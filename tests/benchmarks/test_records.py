"""Files as users have them: whole, cut, broken, another benchmark's."""

import pytest

from arenarl.benchmarks.questions import BrowseCompZH
from arenarl.benchmarks.records import Record, Written, read_records
from arenarl.system.errors import UserError


class _Pair(Record):
    problem: Written
    answer: Written


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.csv", b"problem,answer\nx,y\nz\n", "a.csv, line 3: answer Field required"),
        ("a.csv", b'problem,answer\nx,"half', "a.csv, line 2 is not CSV"),
        ("a.csv", b"question;answer\nx;y\n", "a.csv, line 2: problem Field required"),
        ("a.csv", b"problem,answer\nx,\n", "a.csv, line 2: answer String should have at least 1 character"),
        ("a.csv", b"problem,answer\n\xff\xfe,y\n", "a.csv is not UTF-8"),
        ("a.jsonl", b'{"problem": "x", "answer": "y"}\n\n{"problem": "z"', "a.jsonl, line 3 is not JSON"),
        ("a.jsonl", b'["x", "y"]\n', "a.jsonl, line 1:  ?Input should be .*the record has no fields"),
        ("a.json", b'{"problem": "x"}', "a.json is not a list of records"),
        ("a.json", b'[{"problem": "x", "answer": "y"}, {}]', "a.json, record 2: problem Field required"),
        ("a.jsonl", b"", "a.jsonl holds no records"),
        ("a.jsonl", b"[" * 5000, "a.jsonl, line 1 is not JSON"),
    ],
)
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
    (tmp_path / "zh.json").write_text('[{"Topic": "t", "Question": "问", "Answer": "答"}]', encoding="utf-8")
    (item,) = BrowseCompZH().read(tmp_path / "zh.json")
    assert (item.query, item.fields) == ("问", {"answer": "答"})
    pytest.importorskip("openpyxl", reason="pip install openpyxl")
    (tmp_path / "zh.xlsx").write_bytes(b"PK half")
    with pytest.raises(UserError, match="is not an xlsx file"):
        BrowseCompZH().read(tmp_path / "zh.xlsx")
