"""Pages, and the extraction of a page from HTML: the main text by trafilatura, without navigation, ads and comments.

Pages come from anywhere, so parsers run in worker processes, which do not load torch.
"""

import asyncio
import codecs
import logging
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from typing import NamedTuple

from trafilatura import bare_extraction, load_html

from arenarl.system.workers import Workers

# The policy gets an error for a page that cannot be read, so trafilatura's log is not needed
logging.getLogger("trafilatura").setLevel(logging.CRITICAL)

# The WHATWG's encodings. Python has further codecs, some of which take quadratic time
WEB_CODECS = {*(f"iso8859-{part}" for part in range(1, 17)), *(f"cp125{page}" for page in range(9)), *"""
    ascii utf-8 utf-16 utf-16-le utf-16-be cp866 cp874 tis-620 koi8-r koi8-u mac-roman mac-cyrillic gb2312 gbk gb18030
    big5 big5hkscs shift_jis cp932 euc_jp iso2022_jp euc_kr cp949
""".split()}  # fmt: skip
_threads = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "html")  # one per worker
_workers = Workers("arenarl.domains.research.pages:read_fields")


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
    run = asyncio.get_running_loop().run_in_executor
    fields = await run(_threads, _workers.run, timeout_s, html, url, charset)
    return fields and Page(*fields)


def read_fields(html: bytes, url: str, charset: str | None) -> tuple[str, ...] | None:
    """Return the fields of `read_html`'s page, None without one. Runs in a worker process."""
    page = read_html(html, url, charset)
    return page and astuple(page)
