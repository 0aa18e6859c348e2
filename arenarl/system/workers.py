"""Untrusted work in worker processes, for parsers and validators that hang, run out of memory or crash on some input.

A system timer ends a worker that takes too long, even inside C code. Workers start when first needed, are reused, and
end with this process.

    python -m arenarl.system.workers package.module:function    runs a worker: pickled arguments in, JSON lines out
"""

import json
import pickle
import signal
import subprocess
import sys
from contextlib import suppress
from pkgutil import resolve_name
from typing import Any

from arenarl.system.repository import SOURCES

if sys.platform != "win32":
    import resource

_MEMORY = 2 * 2**30  # bytes, the limit of a worker


class WorkerLost(Exception):
    """The worker ended before it returned a result: too much time or memory, or a crash."""


class Workers:
    """Worker processes that run the function `package.module:function`. Threads may share them."""

    def __init__(self, function: str):
        self._command = [sys.executable, "-m", __name__, function]
        self._idle: list[subprocess.Popen[bytes]] = []

    def run(self, timeout_s: float, *arguments: Any) -> Any:
        """Return the function's result as JSON gives it back. Raises WorkerLost."""
        task = pickle.dumps((timeout_s, arguments))
        try:
            worker = self._idle.pop()
        except IndexError:
            # The worker has its own process group, so Ctrl-C does not reach it; it ends when its input closes
            worker = subprocess.Popen(
                self._command, cwd=SOURCES, process_group=0,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        try:
            worker.stdin.write(task)
            worker.stdin.flush()
            result = json.loads(worker.stdout.readline())
        except BaseException as error:  # also a call that is interrupted: the next one must not read its result
            worker.kill()
            worker.communicate()
            if isinstance(error, OSError | ValueError):
                raise WorkerLost from error
            raise
        self._idle.append(worker)
        return result


def main() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process
    function = resolve_name(sys.argv[1])
    with suppress(ValueError, OSError):  # macOS and a lower limit of the shell refuse it; the timer still holds
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    while True:
        try:
            timeout_s, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        result = json.dumps(function(*arguments))
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(result, flush=True)


if __name__ == "__main__":
    main()
