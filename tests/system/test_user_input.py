"""A path that is not a readable text file is a one-line error, wherever a user names it."""

import subprocess
import sys

import pytest
from scripts import without_rights

from arenarl.config.load import load_config
from arenarl.config.schema import DataConfig
from arenarl.domains.public_data import read_public_data
from arenarl.run.trainer_arguments import check_deepspeed
from arenarl.system.errors import UserError, explain
from arenarl.system.user_input import lines_of, text_of_file
from arenarl.trajectory import MAX_RECORD_NESTING, read_jsonl, read_queries

READERS = {
    "text": text_of_file,
    "jsonl": lambda path: list(read_jsonl(path)),
    "queries": read_queries,
    "config": load_config,
    "deepspeed": lambda path: check_deepspeed("rl.deepspeed", str(path), "train_rl.py", is_check=True),
    "source": lambda path: read_public_data(DataConfig(source=[str(path)]), "travel", ()),
    "source folder": lambda path: read_public_data(DataConfig(source=[str(path.parent)]), "travel", ()),
}
DEEP = "[" * 20_000
NO_TEXTS = {  # what makes a path that is not a text file
    "folder": lambda path: path.mkdir(),
    "latin": lambda path: path.write_bytes('{"query": "café"}\n'.encode("latin-1")),
    "dangling link": lambda path: path.symlink_to(path.parent / "nowhere"),
    "bytes": lambda path: path.write_bytes(bytes(range(256))),
}


@pytest.mark.parametrize("make", NO_TEXTS.values(), ids=NO_TEXTS)
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_path_that_is_not_a_text_file_is_a_one_line_error(tmp_path, make, read):
    path = tmp_path / "train.jsonl"
    make(path)
    with pytest.raises(UserError) as caught:
        read(path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_the_byte_order_mark_of_windows_programs_is_not_part_of_a_text(tmp_path):
    """It would be the first character of a system prompt, and no JSON begins with it. DeepSpeed reads its own file."""
    (tmp_path / "prompt.txt").write_text("Plan.\r\nThen answer.\r\n", encoding="utf-8-sig", newline="")
    assert text_of_file(tmp_path / "prompt.txt") == "Plan.\nThen answer.\n"
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}', encoding="utf-8-sig")
    with pytest.raises(UserError, match="ds.json begins with a byte order mark, which DeepSpeed refuses"):
        check_deepspeed("rl.deepspeed", str(tmp_path / "ds.json"), "train_rl.py", is_check=True)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "file/below"])
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_an_impossible_file_name_is_a_one_line_error(tmp_path, name, read):
    (tmp_path / "file").write_text("x")
    with pytest.raises((UserError, OSError)) as caught:
        read(tmp_path / name)
    assert explain(caught.value).startswith("error: ") and "\n" not in explain(caught.value)


def test_a_file_without_read_permission_is_a_one_line_error(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text("{}\n")
    path.chmod(0)
    as_others = without_rights("dac_override", "dac_read_search")
    code = "import sys, arenarl.system.errors as errors; from arenarl.system.user_input import Path, text_of_file\n"
    code += "errors.run_cli(lambda: text_of_file(Path(sys.argv[1])))"
    command = [*as_others, sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"error: {path} cannot be read: Permission denied\n")


def test_lines_end_only_at_line_feeds(tmp_path):
    (tmp_path / "a").write_text("\ufeffone\n\u2028two", encoding="utf-8")
    assert list(lines_of(tmp_path / "a", "utf-8-sig")) == ["one\n", "\u2028two"]


@pytest.mark.parametrize("line", [DEEP, '{"a":' * 200 + "1" + "}" * 200, '{"a": ' + "9" * 5000 + "}"])
def test_a_record_that_cannot_be_parsed_names_its_line(tmp_path, line):
    path = tmp_path / "train.jsonl"
    path.write_text("{}\n" + line + "\n")
    with pytest.raises(UserError, match=r"train\.jsonl, line 2"):
        list(read_jsonl(path))
    path.write_text('{"a":' * MAX_RECORD_NESTING + "1" + "}" * MAX_RECORD_NESTING + "\n")
    assert len(list(read_jsonl(path))) == 1
