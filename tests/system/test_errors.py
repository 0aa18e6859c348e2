"""Real failures of machines end with one line on stderr that says what to change, and finished work stays."""

import errno
import getpass
import io
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import zipfile
from functools import partial

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from scripts import (
    ENVIRONMENT,
    ROOT,
    command_of,
    ends,
    is_running,
    run,
    run_python,
    run_well,
    wait_until,
    without_rights,
)
from torch.distributed import DistBackendError, DistNetworkError

from arenarl.report.conclusion import meaning
from arenarl.system.errors import (
    GO_ON,
    GPU_OUT_OF_MEMORY,
    INTERRUPTED,
    LOST_CONNECTION,
    OUT_OF_MEMORY,
    UserError,
    explain,
    keep_tracebacks,
    prepare_process,
    run_cli,
)
from arenarl.system.progress import say

LAUNCHED = ("-m", "arenarl.run.launch", "--nproc_per_node")
execute = partial(subprocess.run, capture_output=True, text=True, check=False, timeout=300)


class Numpys(MemoryError):
    """A subclass like numpy's."""


def script(folder, code, *words, launcher=(), environment=None, **options):
    """Run code as a script in the folder."""
    (folder / "script.py").write_text(code)
    return run_python(folder, [*launcher, "script.py", *words], environment, **options)


def limited(kind, *limits):
    return {"preexec_fn": lambda: resource.setrlimit(kind, limits)}


def last_line(done):
    """Return the last line on stderr of a run that ended with code 2 and without a traceback."""
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr[-4000:]
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.slow(seconds=25)
def test_a_full_disk_ends_with_one_line_and_with_more_space_the_run_resumes(tmp_path):
    disk, options = tmp_path / "disk", {"sft__deepspeed": None, "sft__save_steps": 5, "sft__epochs": 1}
    disk.mkdir()
    if execute(["mount", "-t", "tmpfs", "-o", "size=9m", "tmpfs", disk]).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        run_well(disk, "data/prepare.py", "travel")
        assert "the disk is full" in last_line(run(disk, "train_sft.py", **options))
        assert list(disk.glob("runs/tiny/sft/checkpoint-*/whole.json")) and not list(disk.rglob("*.partial"))
        subprocess.run(["mount", "-o", "remount,size=99m", disk], check=True)
        run_well(disk, "train_sft.py", **options)
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize(("soft", "hard", "then"), [(64, 300, 300), (64, 20_000, 8192), (10_000, 20_000, 10_000)])
def test_a_script_raises_its_limit_on_open_files(tmp_path, soft, hard, then):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < hard:
        pytest.skip("the limit of this machine is lower")
    code = (
        "import resource; from arenarl.system.errors import run_cli; run_cli(lambda: "
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)))"
    )
    assert script(tmp_path, code, **limited(resource.RLIMIT_NOFILE, soft, hard)).stdout.strip() == str((then, hard))


def test_too_little_memory_a_limit_on_file_sizes_and_missing_rights_end_with_one_line(tmp_path):
    code = "import torch; from arenarl.system.errors import run_cli; run_cli(lambda: torch.empty(2**45))"
    assert "memory ran out; lower" in last_line(script(tmp_path, code))
    prepare, limit = command_of("data/prepare.py", "travel"), limited(resource.RLIMIT_FSIZE, 20_000, 20_000)
    assert "ulimit -f" in last_line(run_python(tmp_path, prepare[1:], **limit))
    assert not list(tmp_path.rglob("*.partial"))
    run_well(tmp_path, "data/prepare.py", "travel")
    locked = tmp_path / "locked"
    locked.mkdir(0o555)
    done = execute([*without_rights("dac_override"), *prepare], cwd=locked, env=os.environ | ENVIRONMENT)
    assert "error: runs: no permission to read or write there" in last_line(done)


MEETING = """
from accelerate import PartialState
from accelerate.utils import gather_object
from arenarl.system.errors import run_cli

def main():
    PartialState(cpu=True)
    for _ in range(3):
        gather_object([0])

run_cli(main)
"""
WAITING = MEETING.replace("gather_object([0])", """gather_object([0])
    import pathlib, time
    pathlib.Path(f"here-{PartialState().process_index}").touch()
    time.sleep(600)""")  # fmt: skip
FULL = MEETING.replace("gather_object([0])", """gather_object([0])
    if PartialState().process_index:
        import torch
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total of 139.81 GiB")
    gather_object([0])""")  # fmt: skip
BUG = MEETING.replace("gather_object([0])", "gather_object([0])\n    raise ValueError('a bug')")


@pytest.mark.slow(seconds=13)
@pytest.mark.parametrize("victim", ["process", "launcher", "Ctrl-C"])
def test_a_kill_or_ctrl_c_ends_all_processes_with_one_line(tmp_path, victim):
    (tmp_path / "script.py").write_text(WAITING)
    with (tmp_path / "stderr.txt").open("w") as output:
        command, environment = [sys.executable, *LAUNCHED, "2", "script.py"], os.environ | ENVIRONMENT
        launcher = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=output, start_new_session=True)
    while len(list(tmp_path.glob("here-*"))) < 2:
        assert launcher.poll() is None, (tmp_path / "stderr.txt").read_text()
        time.sleep(0.1)
    workers = psutil.Process(launcher.pid).children()
    if victim == "Ctrl-C":
        os.killpg(launcher.pid, signal.SIGINT)
        assert ends(launcher, tmp_path) == (130, INTERRUPTED)
    elif victim == "process":
        workers[1].kill()
        code, line = ends(launcher, tmp_path)
        assert code == 128 + signal.SIGKILL and "a training process was killed" in line and OUT_OF_MEMORY in line
    else:
        launcher.kill()
    launcher.wait()
    wait_until(lambda: not any(is_running(worker.pid) for worker in workers))


@pytest.mark.slow(seconds=6)
def test_a_port_in_use_ends_with_one_line(tmp_path):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(taken.getsockname()[1])}
        place |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
        assert "the port is in use by another run" in last_line(script(tmp_path, MEETING, environment=place))


def test_a_process_that_is_killed_while_it_reports_leaves_no_half_of_an_error_file(tmp_path):
    """torchrun ends the other processes after a failure, and cannot read a file that one of them had begun."""
    code = """
        import os, pathlib, signal
        from arenarl.system.errors import UserError, run_cli
        def fail():
            raise UserError("no disk")
        def write_half(path, text, **_):
            with open(path, "w") as file:
                file.write(text[: len(text) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        pathlib.Path.write_text = write_half
        run_cli(fail)
    """
    file = tmp_path / "error.json"
    done = run_python(ROOT, ["-c", textwrap.dedent(code)], {"TORCHELASTIC_ERROR_FILE": str(file)})
    assert done.returncode == -signal.SIGKILL and not file.exists()


@pytest.mark.slow(seconds=16)
@pytest.mark.parametrize(("code", "processes", "end", "line"), [
    # one process raises the real exception of a full GPU while the other waits for it
    (FULL, 2, 2, f"error: {GPU_OUT_OF_MEMORY}\n"),
    (BUG, 2, 1, "failed with exit code 1; see its traceback above\n"),
    # with Python's shutdown some of four nearly always abort, because a thread of gloo still needs Python
    (MEETING, 4, 0, ""),
], ids=["full", "bug", "end"])  # fmt: skip
def test_several_processes_end_with_the_line_of_one_process_or_without_an_error(tmp_path, code, processes, end, line):
    done = script(tmp_path, code, launcher=(*LAUNCHED, processes))
    assert done.returncode == end and done.stderr.endswith(line) and ("Traceback" in done.stderr) == (code == BUG)
    assert ("ValueError: a bug" in done.stderr) == (code == BUG) and (done.stderr == "") == (end == 0)


@pytest.mark.slow(seconds=10)
def test_plain_torchrun_shows_the_line_in_its_last_lines(tmp_path):
    words = command_of("train_sft.py", processes=2, sft__deepspeed=None)[1:]
    words[words.index("arenarl.run.launch")] = "torch.distributed.run"
    done = run_python(tmp_path, words)
    assert done.returncode == 1
    assert "error: data/sft.jsonl does not exist" in "\n".join(done.stderr.splitlines()[-5:])


def wheel(folder, name, version):
    """A package without content."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": "", f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
    }  # fmt: skip
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        for path, text in files.items():
            file.writestr(path, text)


@pytest.mark.slow(seconds=6)
def test_an_interrupted_download_of_packages_ends_with_one_line_and_a_moved_checkout_resumes(tmp_path):
    """The first attempt finds torch but not the other package, as if the network had failed in between. Scripts of an
    environment, such as bin/pip, hold its path, so they do not run after a move."""
    wheels, checkout = tmp_path / "wheels", tmp_path / "checkout"
    wheels.mkdir()
    checkout.mkdir()
    shutil.copy(ROOT / "reproduce.sh", checkout)
    (checkout / "requirements.txt").write_text("torch==2.13.0\nother==1.0\n")
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    variables |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
    set_up = partial(execute, ["./reproduce.sh", "bench"], env=variables | {"PYTHON": sys.executable})
    wheel(wheels, "torch", "2.13.0")
    done = set_up(cwd=checkout)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: the packages could not be installed")
    assert "other" in (checkout / ".venv" / "install.log").read_text()
    checkout = checkout.rename(tmp_path / "moved 目录")
    wheel(wheels, "other", "1.0")
    assert "arenarl" in set_up(cwd=checkout).stderr
    assert (checkout / ".venv" / "installed.txt").read_text() == (checkout / "requirements.txt").read_text()


FULL_DISK = f"the disk is full; free some space; {GO_ON}"
MANY_FILES = (
    "more files and connections are open than this shell allows (ulimit -n); raise the limit, "
    f"or lower judge.concurrency; {GO_ON}"
)


@pytest.mark.parametrize(("error", "line"), [
    (UserError("change x"), "change x"), (MemoryError(), OUT_OF_MEMORY), (Numpys(), OUT_OF_MEMORY),
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), GPU_OUT_OF_MEMORY),
    (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"), GPU_OUT_OF_MEMORY),
    (DistBackendError("NCCL error in: x.cpp:1\nLast error:\nCuda failure 2 'out of memory'"), GPU_OUT_OF_MEMORY),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't all"), OUT_OF_MEMORY),
    (RuntimeError("[/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1."), LOST_CONNECTION),
    (RuntimeError("[/x/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:1: Connection reset by peer."),
     LOST_CONNECTION),
    (DistNetworkError("Failed to recv, got 0 bytes. Connection was likely closed."), LOST_CONNECTION),
    (DistNetworkError("Connection reset by peer"), LOST_CONNECTION),
    (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"),
     f"a checkpoint could not be written, most likely because the disk is full; free some space; {GO_ON}"),
    (Exception("No space left on device (os error 28)"), FULL_DISK),  # tokenizers
    (SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"), FULL_DISK),
    (OSError(errno.EMFILE, "Too many open files", "runs/x"), f"runs/x: {MANY_FILES}"),
    (OSError(errno.ESTALE, "Stale file handle", "runs/x"),
     f"runs/x: the disk, the network file system or the terminal does not respond any more; check it; {GO_ON}"),
    (SafetensorError("Error while serializing: I/O error: Too many open files (os error 24)"), MANY_FILES),
    (DistNetworkError("The server socket has failed to listen. code: -98, name: EADDRINUSE"),
     "the port is in use by another run; leave MASTER_PORT unset or set it to a free port"),
    (FileNotFoundError(2, "No such file", "x"), None), (ValueError("a bug"), None),
    (ModuleNotFoundError("x", name="no_such_package.part"),
     "no_such_package is not installed, and this run needs it; run: pip install no_such_package"),
    (ModuleNotFoundError("x", name="msvcrt"),
     f"this Python on {sys.platform} lacks its own module msvcrt; use a full Python on Linux, macOS or WSL"),
    (ModuleNotFoundError("x", name="arenarl.nowhere"), None), (ModuleNotFoundError("x", name="json.nowhere"), None),
    (ModuleNotFoundError("x", name="torch.nowhere"), None),
    (ExceptionGroup("tasks", [UserError("change x"), MemoryError()]), "change x"),
    (ExceptionGroup("tasks", [UserError("change x"), KeyError("x")]), None),
])  # fmt: skip
def test_an_error_that_the_user_can_fix_has_a_line_and_a_bug_has_none(error, line):
    assert explain(error) == (line and f"error: {line}")


def test_a_folder_behind_a_link_without_a_target_has_a_line(tmp_path):
    """As runs/ on a disk that is not mounted."""
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    with pytest.raises(FileExistsError) as caught:
        (tmp_path / "runs" / "quickstart").mkdir(parents=True, exist_ok=True)
    assert explain(caught.value).startswith(f"error: {tmp_path}/runs: is a file, or a link whose target is missing")


BUGS = st.sampled_from([KeyError, ValueError, TypeError, LookupError, NotImplementedError, RecursionError])
WORDS = st.sampled_from([
    "CUDA out of memory", "out of memory", "'out of memory'", "cannot allocate memory", "os error 28",
    "Connection closed by peer", "EADDRINUSE", "inline_container.cc", "No space left on device", "error: change x",
])  # fmt: skip
BENIGN = st.sampled_from([
    UserError("change x"), OSError(28, "No space left on device", "x"), MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory"), KeyboardInterrupt(), RuntimeError("CUDA error: out of memory"),
])  # fmt: skip


def caught(before, bug, how):
    """Return the second error, raised while the first is handled."""
    try:
        try:
            raise before
        except BaseException as error:
            if how == "while handling it":
                raise bug  # noqa: B904 (what is tested)
            raise bug from (error if how == "from it" else None)
    except BaseException as error:
        return error


@given(
    bug=st.sampled_from([RuntimeError, Exception, OSError]), words=WORDS, before=st.sampled_from(["said: ", "'", "\n"])
)
def test_a_plain_error_that_only_quotes_the_words_is_a_bug(bug, words, before):
    assert explain(bug(before + words)) is None


@given(bug=BUGS, words=WORDS, before=BENIGN, how=st.sampled_from(["while handling it", "from None", "from it"]))
def test_a_bug_stays_a_bug_unless_a_fixable_error_caused_it(bug, words, before, how):
    expected = explain(before) if how == "from it" else None
    assert explain(bug(words)) is None
    for error in (bug(words), RuntimeError("no group")):
        assert explain(caught(before, error, how)) == expected


STAGE = """
import sys
from pathlib import Path
from arenarl.system.errors import keep_tracebacks, run_cli
from arenarl.system.progress import Bar, say

def main():
    if "stage" in sys.argv:
        keep_tracebacks(Path())
    for _ in Bar("steps", 3).over(range(3)):
        say("a line")
        with open("file.txt", "w") as file:  # gets the lowest free number
            print("only this", file=file)
            print("a library's warning", file=sys.stderr)
    Path("done").touch()

run_cli(main)
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [[], ["stage"]])
@pytest.mark.parametrize("unread", [["stdout"], ["stderr"], ["stdout", "stderr"]])
def test_an_output_without_a_reader_ends_a_command_and_a_stage_says_so(tmp_path, words, unbuffered, unread):
    """As with `| head -1`, `2> >(head -1)` or `2>&1 | head -1`; containers often set PYTHONUNBUFFERED."""
    reader, writer = os.pipe()
    os.close(reader)
    options = {"capture_output": False, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options |= dict.fromkeys(unread, writer)
    done = script(tmp_path, STAGE, *words, environment={"PYTHONUNBUFFERED": unbuffered}, **options)
    os.close(writer)
    assert done.returncode == 141 and not (tmp_path / "done").exists()
    if "stderr" not in unread:
        line = f"error: the program that read this output has ended; {GO_ON}\n"
        assert done.stderr.endswith(line) == bool(words)
        assert "Traceback" not in done.stderr and "bug" not in done.stderr


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]])
def test_a_command_without_standard_streams_runs_and_prints_into_no_file(tmp_path, closed):
    done = script(tmp_path, STAGE, preexec_fn=lambda: [os.close(number) for number in closed])
    assert done.returncode == 0 and (tmp_path / "done").exists(), done.stderr
    assert (tmp_path / "file.txt").read_text() == "only this\n"


def test_an_error_raised_from_itself_is_a_bug_like_any_other():
    bug = ValueError("a bug")
    bug.__cause__ = bug
    assert explain(bug) is None


def test_a_script_does_not_write_into_the_folder_of_an_earlier_one_in_its_process(tmp_path, capsys):
    def main():
        raise UserError("no luck")

    keep_tracebacks(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        run_cli(main)
    assert capsys.readouterr().err == "error: no luck\n" and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_any_text_can_be_printed_on_any_terminal(monkeypatch, encoding):
    written, errors = io.BytesIO(), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding, write_through=True))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(errors, encoding=encoding, write_through=True))
    text = "… → 中 \udc80"  # half a character, as in a file name

    def main():
        say(text)
        raise UserError(text)

    with pytest.raises(SystemExit, match="2"):
        run_cli(main)
    expected = text.encode(encoding, "backslashreplace")
    assert (written.getvalue(), errors.getvalue()) == (expected + b"\n", b"error: " + expected + b"\n")


def test_every_command_prepares_its_process():
    """Terminal, home, limits and one-line errors depend on it. Two modules are pipes between processes."""
    pipes = {"arenarl/system/workers.py", "arenarl/domains/mcp_server.py"}
    for path in (*ROOT.glob("arenarl/**/*.py"), *ROOT.glob("data/*.py"), *ROOT.glob("*.py")):
        text, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
        if 'if __name__ == "__main__"' in text and name not in pipes and not name.endswith("/mcp_server.py"):
            assert re.search(r"\brun_cli\(|\bprepare_process\(", text), name


def test_without_a_home_that_can_be_written_caches_go_to_the_runs_folder(tmp_path, monkeypatch):
    def variables_with(home, is_writable=True):
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            patch.setattr(os, "environ", os.environ.copy())
            for name in [name for name in os.environ if name.startswith(("XDG_", "HF_", "TRITON", "USER", "LOGNAME"))]:
                del os.environ[name]
            if home is None:
                patch.setattr(os.path, "expanduser", lambda path: path.replace("~", os.environ.get("HOME", "~")))
                patch.delenv("HOME")
            else:
                patch.setenv("HOME", str(home))
            access = os.access
            patch.setattr(os, "access", lambda path, how: is_writable and access(path, how))
            patch.setattr(getpass, "getuser", lambda: os.environ["USER"])  # KeyError: a number without a name
            prepare_process()
            return dict(os.environ)

    own, home = tmp_path / "runs" / "home", tmp_path / "home"
    for missing in (None, tmp_path / "nowhere"):
        variables = variables_with(missing)
        assert variables["HOME"] == str(own) and own.is_dir() and variables["USER"].startswith("user")
    (home / ".cache" / "huggingface").mkdir(parents=True)
    variables = variables_with(home, is_writable=False)
    assert variables["HOME"] == str(home) and variables["HF_HOME"] == str(home / ".cache" / "huggingface")
    assert all(variables[name].startswith(str(own)) for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TRITON_HOME"))
    assert not {"XDG_CACHE_HOME", "HF_HOME"} & variables_with(home).keys()


SLOW_TO_IMPORT = """
import sys, time
time.sleep(float(sys.argv[1]))
from arenarl.system.errors import end_with_parent
end_with_parent()
print("ready", flush=True)
time.sleep(600)
"""
OWNER = f"""
import os, subprocess, sys, time
os.environ["ARENARL_OWNED"] = str(os.getpid())
owned = subprocess.Popen([sys.executable, "-c", {SLOW_TO_IMPORT!r}, sys.argv[1]])
print(owned.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(("import_s", "is_waited_for"), [(0, True), (2, True), (2, False)])
def test_a_command_ends_with_the_command_that_started_it_also_when_that_is_killed_first(import_s, is_waited_for):
    """A killed process stays in the process table until its parent waits for it."""
    with subprocess.Popen([sys.executable, "-c", OWNER, str(import_s)], stdout=subprocess.PIPE, text=True) as owner:
        owned = int(owner.stdout.readline())
        if not import_s:
            assert owner.stdout.readline() == "ready\n"
        owner.kill()
        if is_waited_for:
            owner.wait()
        wait_until(lambda: not is_running(owned))


BROKEN = """
import sys
from pathlib import Path
from arenarl.system.errors import UserError, run_cli, keep_tracebacks

ERRORS = {"user": UserError("no such key sk-0123456789"), "bug": KeyError("out of memory"), "ctrl": KeyboardInterrupt()}

def main():
    Path("run").mkdir(exist_ok=True)
    keep_tracebacks(Path("run"))
    if sys.argv[1] != "none":
        raise ERRORS[sys.argv[1]]

run_cli(main)
"""


def test_the_traceback_is_written_to_the_runs_folder_without_keys_and_the_line_names_it(tmp_path):
    end = partial(script, tmp_path, BROKEN, environment={"SOME_API_KEY": "sk-0123456789"})
    file = tmp_path / "run" / "error-0.txt"
    done = end("user")
    line = "error: no such key <SOME_API_KEY>; traceback: run/error-0.txt\n"
    assert (done.returncode, done.stderr) == (2, line) and "sk-0123456789" not in file.read_text()
    assert file.read_text().startswith("Traceback") and "UserError: no such key <SOME_API_KEY>" in file.read_text()
    done = end("bug")
    assert done.returncode == 1 and "KeyError: 'out of memory'" in file.read_text()
    what = "error: KeyError, a bug in this project, in a library or in your own class; traceback: run/error-0.txt\n"
    assert done.stderr == file.read_text() + what
    done = end("ctrl")
    assert (done.returncode, done.stderr, file.exists()) == (130, INTERRUPTED + "\n", False)
    end("user")
    assert end("none").returncode == 0 and not file.exists()


HALF_MADE = """
import asyncio, sys
from arenarl.system.errors import run_cli

class Loop(asyncio.SelectorEventLoop):
    def __init__(self):
        raise KeyboardInterrupt  # before there is anything for BaseEventLoop.__del__ to close

async def nothing():
    pass

def main():
    asyncio.set_event_loop_policy(type("Policy", (asyncio.DefaultEventLoopPolicy,), {"_loop_factory": Loop})())
    asyncio.run(nothing())

run_cli(main, goes_on=sys.argv[1] == "goes_on")
"""


@pytest.mark.parametrize(("how", "line"), [("goes_on", INTERRUPTED + "\n"), ("ends", "")])
def test_ctrl_c_while_an_event_loop_is_made_leaves_no_warning(how, line, tmp_path):
    done = script(tmp_path, HALF_MADE, how)
    assert (done.returncode, done.stderr) == (130, line)
    done = script(tmp_path, HALF_MADE.replace("run_cli(main", "main() or run_cli(main"), how)
    assert "Exception ignored in" in done.stderr  # without `run_cli` the loop does warn


@pytest.mark.parametrize(
    ("rl", "verdict"), [((41, 45, 50), "higher"), ((10, 20, 29), "lower"), ((35, 45, 50), "no difference is shown")]
)
def test_the_conclusion_claims_a_difference_only_where_the_intervals_are_apart(rl, verdict):
    def figures(low, mean, high):
        return {"win_rate": {"mean": mean, "ci": [low, high]}, "cases": 500}

    policies = {"sft": figures(30, 35, 40), "rl": figures(*rl)}
    summary = {name: {"greedy": one, "sampled": one} for name, one in policies.items()} | {"judge": "simulated"}
    change, caveat = meaning(summary)
    assert verdict in change and f"35.0 → {rl[1]:.1f} %" in change and "simulated" in caveat and "One seed" in caveat
