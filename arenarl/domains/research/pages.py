"""Pages, and the extraction of a page from HTML: the main text by trafilatura, without navigation, ads and comments.

Pages come from anywhere, so parsers run in worker processes. If a parser hangs, runs out of memory or crashes on a
page, only its worker is lost. Workers start with the first page and are reused; they do not load torch. A system timer
ends a worker whose page takes too long, even inside a parser's C code.

    python -m arenarl.domains.research.pages    runs a worker: a JSON line and the page in, a JSON line out
"""

import asyncio
import codecs
import json
import logging
import os
import re
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from typing import NamedTuple

from trafilatura import bare_extraction, load_html

from arenarl.system.repository import SOURCES

# The policy gets an error for a page that cannot be read, so trafilatura's log is not needed
logging.getLogger("trafilatura").setLevel(logging.CRITICAL)

# The WHATWG's encodings. Python has further codecs, some of which take quadratic time
WEB_CODECS = {*(f"iso8859-{part}" for part in range(1, 17)), *(f"cp125{page}" for page in range(9)), *"""
    ascii utf-8 utf-16 utf-16-le utf-16-be cp866 cp874 tis-620 koi8-r koi8-u mac-roman mac-cyrillic gb2312 gbk gb18030
    big5 big5hkscs shift_jis cp932 euc_jp iso2022_jp euc_kr cp949
""".split()}  # fmt: skip
_MEMORY = 2 * 2**30  # bytes, the limit of a worker
_threads = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "html")  # one per worker
_idle: list[subprocess.Popen] = []


@dataclass(frozen=True)
class Page:
    """`text` is the main text, free of markup, its paragraphs separated by blank lines."""

    url: str
    title: str
    text: str


class Hit(NamedTuple):
    """A search result: a page with a snapshot (web) or its chunks (local)."""

    url: str
    title: str
    snapshot: str = ""  # the web search's excerpt
    chunks: list[str] | None = None  # best first


class WorkerLost(Exception):
    """Error for a page whose worker ended: too much time or memory, or a crash."""


def read_html(html: bytes, url: str, charset: str | None = None) -> Page | None:
    """Return the page, or None if it has no main text. A wrong or missing `charset` is replaced by a detected one."""
    try:
        if (tree := load_html(decode(html, charset))) is None:
            return None
        title = tree.findtext(".//title") or url
        article = bare_extraction(tree, url=url, include_comments=False)
    except Exception:  # noqa: BLE001 - trafilatura and its parsers raise what they like on broken pages; one page is not worth a run
        return None
    text = paragraphs(article.text or "") if article else ""
    return Page(url, " ".join(title.split()), text) if text else None


def paragraphs(text: str) -> str:
    """Return the text's lines as paragraphs, separated by blank lines.

    >>> paragraphs("One. \\n\\n\\nTwo.\\r\\nThree.")
    'One.\\n\\nTwo.\\n\\nThree.'
    """
    return "\n\n".join(line.strip() for line in re.split(r"[\r\n]+", text) if line.strip())


def decode(html: bytes, charset: str | None) -> str | bytes:
    """Return the decoded text; the bytes if the charset is missing, wrong, or not one of the web's."""
    try:
        return html.decode(charset) if charset and codecs.lookup(charset).name in WEB_CODECS else html
    except (ValueError, LookupError):  # ValueError: invalid bytes, or a NUL in the name
        return html


async def read_html_in_worker(html: bytes, url: str, charset: str | None, timeout_s: float) -> Page | None:
    """Run `read_html` in a worker process. Raises WorkerLost if that takes longer than `timeout_s`, or crashes."""
    return await asyncio.get_running_loop().run_in_executor(_threads, _read_in_worker, html, url, charset, timeout_s)


def _read_in_worker(html: bytes, url: str, charset: str | None, timeout_s: float) -> Page | None:
    try:
        worker = _idle.pop()
    except IndexError:
        # With a process group of its own, Ctrl-C does not reach the worker; it ends when its input closes
        worker = subprocess.Popen(
            [sys.executable, "-m", __name__], cwd=SOURCES, process_group=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        worker.stdin.write(json.dumps([len(html), url, charset, timeout_s]).encode() + b"\n" + html)
        worker.stdin.flush()
        fields = json.loads(worker.stdout.readline())
    except (OSError, ValueError) as error:
        worker.kill()
        worker.communicate()
        raise WorkerLost from error
    _idle.append(worker)
    return fields and Page(*fields)


def main() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process
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
