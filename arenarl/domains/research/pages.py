"""Pages, and how HTML becomes one: the main text by trafilatura, without navigation, advertisements and comments.

Pages come from anywhere, so parsers run in worker processes. A page on which a parser hangs, grows or crashes costs
its worker, and no more. Workers start with the first page and stay for the next ones; they do not load torch. The
system's own clock ends a worker whose page takes too long, also inside a parser's C code.

    python -m arenarl.domains.research.pages    is a worker: a line of JSON and the page in, a line of JSON out
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

from arenarl.system.repository import ROOT

# it prints what is wrong with each page; the policy is told
logging.getLogger("trafilatura").setLevel(logging.CRITICAL)

# of the WHATWG: Python has others, some of which take time in the square of a page's length
WEB_CODECS = {*(f"iso8859-{part}" for part in range(1, 17)), *(f"cp125{page}" for page in range(9)), *"""
    ascii utf-8 utf-16 utf-16-le utf-16-be cp866 cp874 tis-620 koi8-r koi8-u mac-roman mac-cyrillic gb2312 gbk gb18030
    big5 big5hkscs shift_jis cp932 euc_jp iso2022_jp euc_kr cp949
""".split()}  # fmt: skip
_MEMORY = 2 * 2**30  # bytes that a worker may take up
_threads = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "html")  # one a worker
_idle: list[subprocess.Popen] = []


@dataclass(frozen=True)
class Page:
    """`text` is the main text, free of markup, its paragraphs separated by blank lines."""

    url: str
    title: str
    text: str


class Hit(NamedTuple):
    """A page that an engine found."""

    url: str
    title: str
    snapshot: str = ""  # the sentence that a web search shows
    chunks: list[str] | None = None  # of a local page, best first


class WorkerLost(Exception):
    """The page took too long, or more than its worker could bear."""


def read_html(html: bytes, url: str, charset: str | None = None) -> Page | None:
    """Return None for a page without main text. `charset` is the server's; a wrong one is detected anew."""
    try:
        if (tree := load_html(decoded(html, charset))) is None:
            return None
        title = tree.findtext(".//title") or url
        article = bare_extraction(tree, url=url, include_comments=False)
    except Exception:  # noqa: BLE001 - trafilatura and its parsers raise what they like on broken pages; one page is not worth a run
        return None
    text = paragraphs(article.text or "") if article else ""
    return Page(url, " ".join(title.split()), text) if text else None


def paragraphs(text: str) -> str:
    """Lines as paragraphs, a blank line between two.

    >>> paragraphs("One. \\n\\n\\nTwo.\\r\\nThree.")
    'One.\\n\\nTwo.\\n\\nThree.'
    """
    return "\n\n".join(line.strip() for line in re.split(r"[\r\n]+", text) if line.strip())


def decoded(html: bytes, charset: str | None) -> str | bytes:
    """The text, where the charset is one of the web's and right; otherwise the bytes."""
    try:
        return html.decode(charset) if charset and codecs.lookup(charset).name in WEB_CODECS else html
    except (ValueError, LookupError):  # ValueError: no such bytes, or a NUL in its name
        return html


async def read_html_apart(html: bytes, url: str, charset: str | None, timeout_s: float) -> Page | None:
    """As `read_html`. Raises WorkerLost after at most `timeout_s` of reading."""
    return await asyncio.get_running_loop().run_in_executor(_threads, _read_in_worker, html, url, charset, timeout_s)


def _read_in_worker(html: bytes, url: str, charset: str | None, timeout_s: float) -> Page | None:
    try:
        worker = _idle.pop()
    except IndexError:
        # Ctrl-C does not reach it (process_group): it ends with its input
        worker = subprocess.Popen(
            [sys.executable, "-m", __name__], cwd=ROOT, process_group=0,
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
