"""Files appear whole with several writers in any order and after kills, and JSON follows the standard."""

import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arenarl.system.atomic_files import atomic_path, read_json, to_json, write_json
from arenarl.system.errors import UserError

KILLED = """
import os, signal, sys
from pathlib import Path
from arenarl.system.atomic_files import atomic_path
with atomic_path(Path(sys.argv[1])) as partial:
    partial.mkdir() if sys.argv[2] == "folder" else partial.write_text("half")
    print(partial, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


class Writer:
    """A writer that writes its number in three parts and then finishes or fails."""

    length = 3

    def __init__(self, path: Path, number: int):
        self.text, self.written, self.context = str(number) * self.length, 0, atomic_path(path)
        self.partial = self.context.__enter__()

    def write(self):
        if self.written < self.length:
            with self.partial.open("a") as file:
                file.write(self.text[self.written])
            self.written += 1

    def end(self):
        while self.written < self.length:
            self.write()
        self.context.__exit__(None, None, None)

    def fail(self):
        assert not self.context.__exit__(KeyError, KeyError(), None)  # the error is not swallowed


@given(events=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["write", "write", "end", "fail"])), max_size=30))
def test_the_file_is_whole_and_from_the_writer_that_finished_last(tmp_path_factory, events):
    path = tmp_path_factory.mktemp("many") / "file.json"
    writers, expected = {}, None
    for number, event in events:
        writer = writers.pop(number, None) or Writer(path, number)
        getattr(writer, event)()
        if event == "write":
            writers[number] = writer
        expected = writer.text if event == "end" else expected
        assert (path.read_text() if path.exists() else None) == expected
    for writer in writers.values():
        writer.fail()
    assert {one.name for one in path.parent.iterdir()} == ({path.name} if expected else set())


def test_threads_that_write_one_file_leave_it_whole(tmp_path):
    path = tmp_path / "file.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: write_json(path, [number] * 2000), range(200)))
    assert len(set(read_json(path))) == 1 and len(read_json(path)) == 2000 and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_the_next_writer_deletes_leftovers_of_a_killed_process_and_nothing_else(tmp_path, kind):
    path = tmp_path / "file [1].json"
    command = [sys.executable, "-c", KILLED, str(path), kind]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    left = Path(done.stdout.strip())
    others = [left.with_name(left.name.replace("file [1]", "file 1")), tmp_path / "file [1].json.elsewhere-1-0.partial"]
    for other in others:  # for another file, and from another machine
        other.write_text("")
    assert done.returncode < 0 and left.exists()
    with atomic_path(path) as mine:
        mine.write_text("half")
        write_json(path, 1)
        mine.write_text("whole")
        assert not left.exists() and str(os.getpid()) in mine.name
    assert path.read_text() == "whole" and sorted(tmp_path.iterdir()) == sorted([path, *others])


def test_a_file_that_cannot_replace_a_folder_leaves_nothing_behind(tmp_path):
    (tmp_path / "file.json").mkdir()
    with pytest.raises(IsADirectoryError):
        write_json(tmp_path / "file.json", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["file.json"]


def test_a_pipe_or_device_is_not_replaced_and_a_link_stays_a_link(tmp_path):
    """As root, --pairs /dev/null would replace the machine's /dev/null."""
    pipe, link, target = tmp_path / "pipe", tmp_path / "link.json", tmp_path / "disk" / "target.json"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="is a pipe or device, which a new file would replace; name a file"):
        write_json(pipe, 1)
    assert pipe.is_fifo()
    link.symlink_to(target)
    for value in (1, 2):  # at first, the link's target does not exist
        write_json(link, value)
        assert link.is_symlink() and target.read_text() == f"{value}\n"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["disk", "link.json", "pipe", "target.json"]


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


def strict(text):
    """Parse JSON by the standard, unlike Python without NaN and Infinity."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@settings(max_examples=200)
@given(VALUES)
def test_any_value_is_written_as_json_with_null_for_nan_and_infinity(value):
    def expected(value):
        if isinstance(value, dict):
            return {key: expected(item) for key, item in value.items()}
        if isinstance(value, list):
            return [expected(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    assert strict(to_json(value)) == strict(to_json(value, indent=2)) == expected(value)


@dataclass(frozen=True)
class State:
    seconds: float
    name: str | None = None


@pytest.mark.parametrize(("text", "problem"), [
    ("", "EOF"), ("{", "EOF"), ("[1]", "object"), ("null", "object"), ('{"seconds": "1"}', "seconds .*valid number"),
    ("{}", "seconds Field required"), ('{"seconds": 1, "name": 2}', "name .*valid string"), ("\xff", ""),
    ("[" * 100_000, ""),
])  # fmt: skip
def test_a_damaged_state_file_is_one_line_with_a_remedy(tmp_path, text, problem):
    path = tmp_path / "state.json"
    assert read_json(path, State) is None
    path.write_text('{"seconds": 1, "later": true}')
    assert read_json(path, State) == State(1.0)
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=rf"state.json is damaged \(.*{problem}.*\); delete it$"):
        read_json(path, State, "delete it")
    if text[:2] in ("", "{", "[[", "\xff"):
        with pytest.raises(UserError, match=r"state.json is damaged \(.*\); restore it, or delete it$"):
            read_json(path)
