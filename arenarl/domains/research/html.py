"""The main text of an HTML page, by trafilatura: no navigation, no advertisement, no comments.

Pages come from anywhere: whatever a parser makes of one, the result is a page or None.
"""

import codecs
import logging
import re

from trafilatura import bare_extraction, load_html

from arenarl.domains.research.pages import Page

# it prints what is wrong with each page; the policy is told
logging.getLogger("trafilatura").setLevel(logging.CRITICAL)

WEB_CODECS = {  # of the WHATWG: Python has others, some of which take time in the square of a page's length
    "ascii", "utf-8", "utf-16", "utf-16-le", "utf-16-be", *(f"iso8859-{part}" for part in range(1, 17)),
    *(f"cp125{page}" for page in range(9)), "cp866", "cp874", "tis-620", "koi8-r", "koi8-u", "mac-roman",
    "mac-cyrillic", "gb2312", "gbk", "gb18030", "big5", "big5hkscs", "shift_jis", "cp932", "euc_jp", "iso2022_jp",
    "euc_kr", "cp949",
}  # fmt: skip


def read_html(html: bytes, url: str, charset: str | None = None) -> Page | None:
    """None where there is no main text. `charset` is what the server says;
    a wrong one, and one that the web has not, is detected anew."""
    try:
        tree = load_html(decoded(html, charset))
        title = None if tree is None else tree.findtext(".//title")
        found = None if tree is None else bare_extraction(tree, url=url, include_comments=False)
    except Exception:  # noqa: BLE001 - trafilatura and its parsers raise what they like on broken pages; one page is not worth a run
        return None
    if found is None or not (found.text or "").strip():
        return None
    return Page(url, " ".join((title or url).split()), paragraphs(found.text))


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
