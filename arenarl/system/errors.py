"""What ends a run: what a user can mend is one line on stderr that says how, anything else keeps its traceback.

Under torchrun the line goes into the error file that torchrun gives to each process, because what several processes
print while one takes the others down cannot be read; `launch.py` prints the line that was the cause.
"""

import atexit
import errno
import json
import os
import re
import resource
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

OWNED = "ARENARL_OWNED"  # set in the environment of a script that a command of ours has started
GO_ON = "the same command then resumes"
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
_ENOUGH_FILES = 8192  # for a thousand calls under way, the store and the files of a run; macOS starts a shell with 256
_FAILURES = (  # numbers of OSErrors, what libraries say of the same in errors without a number, and our line
    ([errno.ENOSPC], r"No space left on device", f"the disk is full; free some space; {GO_ON}"),
    ([errno.EDQUOT], None, f"the disk quota is used up; free some space; {GO_ON}"),
    ([errno.EMFILE, errno.ENFILE], r"Too many open files",
     "more files and connections are open at once than this shell allows (ulimit -n); raise the limit, "
     f"or lower judge.concurrency; {GO_ON}"),
    ([errno.EFBIG], r"File too large",
     f"the file would be larger than this shell allows (ulimit -f); raise the limit; {GO_ON}"),
    ([errno.EACCES, errno.EPERM], r"Permission denied",
     "no permission to read or write there; change the permissions of the folder or "
     f"run from a copy of your own; {GO_ON}"),
    ([errno.EROFS], None, f"the file system is read-only; run from a copy in a folder you can write to; {GO_ON}"),
    ([errno.EISDIR], None, "a folder stands where a file belongs; move it away, or name a file"),
    ([errno.ENOTDIR], None, "a file stands where a folder belongs; move it away, or name a folder"),
    ([errno.ENAMETOOLONG], None, "this name is longer than the file system allows; take a shorter one"),
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
# in the texts of these libraries' own types such words may stand anywhere
_OF_LIBRARIES = ("torch", "safetensors", "tokenizers", "pyarrow")
# what their C++ and Rust raise: there a text has to begin so, since a bug may quote any of these words
_PLAIN = (RuntimeError, Exception, OSError)
_SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD")  # how such variables' names end
_tracebacks: Path | None = None  # the folder that they are written to


class UserError(Exception):
    """Something the user can fix; scripts print it as one line and exit with code 2."""


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """The end of a line about a name that is none of these; empty where none is near.

    >>> did_you_mean("swis", ["swiss", "elo"])
    '; did you mean swiss?'
    """
    return "".join(f"; did you mean {match}?" for match in get_close_matches(text, names, n=1))


def shown(value: object) -> str:
    """The value as it stands in a message of one line."""
    text = "".join(character if character.isprintable() else " " for character in str(value))
    return text if len(text) <= 200 else f"{text[:200]} …"


def keep_tracebacks(folder: Path) -> None:
    """From now on a failure's traceback is written to a file in the run's folder,
    which the line that is shown names."""
    global _tracebacks
    _tracebacks = folder
    _traceback_file(folder).unlink(missing_ok=True)  # of a failure that is past


def guarded(main: Callable[[], None], goes_on: bool = True) -> None:
    """Run a script's main; what the user can mend ends as one line on stderr and exit code 2, Ctrl-C as one and 130.

    A script that cannot go on where it was interrupted (`goes_on` False) then says nothing.
    """
    end_with_parent()
    _allow_files()
    code = 0
    try:
        main()
    except (Exception, KeyboardInterrupt) as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not tear up what is printed
        if isinstance(error, KeyboardInterrupt):
            # nor what it left half made, an event loop or a coroutine, complain as it is cleared away
            sys.unraisablehook = lambda _: None
            warnings.simplefilter("ignore")
        code = 130 if isinstance(error, KeyboardInterrupt) and not goes_on else _ended_by(error)
    _exit(code)


def _allow_files() -> None:
    """As many open files as this user may have, at most `_ENOUGH_FILES`: a shell often starts with fewer than judging a
    step takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS has one more limit, which no call tells
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def explain(error: BaseException) -> str | None:
    """One line that says what to change, or None for an error that is a bug.

    Only what an error is, or was explicitly raised from, counts:
    a bug met while another error was being handled stays a bug.
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
            return f"error: {line}"
        if isinstance(cause, BaseExceptionGroup):
            lines = [explain(one) for one in cause.exceptions]
            return None if None in lines else lines[0]
        cause = cause.__cause__
    return None


def _known_failure(error: BaseException) -> str | None:
    """What a full disk, too little memory or a lost process is called, by the error's type,
    and where that says too little by its text."""
    if isinstance(error, MemoryError):
        return OUT_OF_MEMORY
    if isinstance(error, OSError):
        for numbers, _, line in _FAILURES:
            if error.errno in numbers:
                return f"{error.filename}: {line}" if error.filename else line
    is_of_library = type(error).__module__.partition(".")[0] in _OF_LIBRARIES
    matches = re.search if is_of_library else re.match if type(error) in _PLAIN else None
    return next((line for _, text, line in _FAILURES if matches and text and matches(text, str(error))), None)


def show(line: str) -> None:
    """Print a line on stderr, below a progress bar if one stands there."""
    print(("\n" if sys.stderr.isatty() else "") + line, file=sys.stderr)


def end_with_parent() -> None:
    """Under torchrun, or started by a table (`OWNED`): train on no longer than whoever started this process,
    even if that is killed."""

    def watch(parent: int) -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    if "TORCHELASTIC_RUN_ID" in os.environ or OWNED in os.environ:
        threading.Thread(target=watch, args=(os.getppid(),), daemon=True).start()


def _ended_by(error: Exception | KeyboardInterrupt) -> int:
    """Say what ended the run; returns the exit code."""
    line, file, text = explain(error), None, _masked("".join(traceback.format_exception(error)))
    if _tracebacks and not isinstance(error, KeyboardInterrupt):
        with suppress(OSError):  # a disk so full that not even this fits
            _traceback_file(_tracebacks).write_text(text, encoding="utf-8", errors="backslashreplace")
            file = _traceback_file(_tracebacks)
    if line is None:
        show(text.rstrip())
        line = f"error: {type(error).__name__}, a bug of ours, of a library or of a class of your own"
        if file:
            _report(f"{line}; traceback: {file}")
        return 1
    _report(_masked(f"{line}; traceback: {file}" if file else line))
    return 130 if isinstance(error, KeyboardInterrupt) else 2


def _masked(text: str) -> str:
    """Without the values of variables that hold keys: people send such lines and files to others."""
    for name, value in os.environ.items():
        if name.endswith(_SECRETS) and len(value) >= 8:
            text = text.replace(value, f"<{name}>")
    return text


def _traceback_file(folder: Path) -> Path:
    return folder / f"error-{os.environ.get('RANK', '0')}.txt"


def _exit(code: int) -> None:
    """End at once where there is a process group: a thread of gloo's that frees tensors while Python shuts down would
    abort the process."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        sys.exit(code)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _report(line: str) -> None:
    """Leave the line where torchrun looks for it, or print it."""
    record = {"message": {"message": line, "extraInfo": {"py_callstack": line, "timestamp": str(int(time.time()))}}}
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        with suppress(OSError):  # a disk so full that not even this fits
            Path(path).write_text(json.dumps(record), encoding="utf-8")
            return
    show(line)
