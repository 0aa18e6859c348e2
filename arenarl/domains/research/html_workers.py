"""HTML read in processes of their own: a page on which a parser hangs,
grows or crashes costs the process that reads it, and no more.

`fetch` asks here. Workers start with the first page and stay for the next ones, a few of them at most; they know
nothing of torch. The system's own clock ends one whose page takes too long, also within a parser's C code.

    python -m arenarl.domains.research.html_workers    is a worker: a line of JSON and the page in, a line of JSON out
"""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple

from arenarl.domains.research.html import read_html
from arenarl.domains.research.pages import Page
from arenarl.system.repository import ROOT

_MEMORY = 2 * 2**30  # bytes that a worker may take up
_threads = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "html")  # one a worker
_idle: list[subprocess.Popen] = []


class WorkerLost(Exception):
    """The page took too long, or more than its worker could bear."""


async def read_html_apart(html: bytes, url: str, charset: str | None, timeout_s: float) -> Page | None:
    """As `read_html`. Raises WorkerLost after at most `timeout_s` of reading."""
    return await asyncio.get_running_loop().run_in_executor(_threads, _ask_worker, html, url, charset, timeout_s)


def _ask_worker(html: bytes, url: str, charset: str | None, timeout_s: float) -> Page | None:
    try:
        worker = _idle.pop()
    except IndexError:
        command = [sys.executable, "-m", __name__]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        # Ctrl-C is not for it: it ends with its input
        worker = subprocess.Popen(command, cwd=ROOT, process_group=0, **pipes)
    try:
        worker.stdin.write(json.dumps([len(html), url, charset, timeout_s]).encode() + b"\n" + html)
        worker.stdin.flush()
        found = json.loads(worker.stdout.readline())
    except (OSError, ValueError) as error:
        worker.kill()
        worker.communicate()
        raise WorkerLost from error
    _idle.append(worker)
    return found and Page(*found)


def main() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends the process
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    while head := sys.stdin.buffer.readline():
        size, url, charset, timeout_s = json.loads(head)
        html = sys.stdin.buffer.read(size)
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        page = read_html(html, url, charset)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(page and astuple(page)), flush=True)


if __name__ == "__main__":
    main()
