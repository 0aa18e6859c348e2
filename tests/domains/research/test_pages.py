import asyncio
import subprocess
import sys
import time

import pytest
from sites import ARTICLE, on_loopback, site

from arenarl.config.schema import WebConfig
from arenarl.domains.research import pages
from arenarl.domains.research.fetch import Fetcher, FetchError
from arenarl.domains.research.pages import WEB_CODECS, WorkerLost, read_html, read_html_apart
from arenarl.domains.research.passages import chunks, cut, extract_snippet, extract_summary

PAGE = ARTICLE.format("").encode()


def read(html, charset=None, timeout_s=20.0):
    return asyncio.run(read_html_apart(html, "http://a/", charset, timeout_s))


def test_a_worker_reads_as_this_process_does_and_stays_for_the_next_page():
    assert read(PAGE) == read_html(PAGE, "http://a/")
    (worker,) = pages._idle
    assert read(b"") is None and read(PAGE.decode().encode("gb18030"), "gb18030") == read(PAGE)
    assert pages._idle == [worker] and worker.poll() is None


def test_pages_are_read_side_by_side():
    async def all_of_them():
        return await asyncio.gather(
            *(read_html_apart(PAGE.replace(b"1950", str(n).encode()), "http://a/", None, 20.0) for n in range(30))
        )

    assert [f"in {n} by" in page.text for n, page in enumerate(asyncio.run(all_of_them()))] == [True] * 30


def test_a_page_that_takes_too_long_is_given_up_and_the_next_one_read():
    with pytest.raises(WorkerLost):
        read(b"<p>word " * 60_000, timeout_s=0.05)
    assert read(PAGE).title == "Tide pools"


def test_a_worker_that_dies_costs_its_page_only():
    read(PAGE)
    for worker in pages._idle:
        worker.kill()
        worker.wait()
    lost = len(pages._idle)
    for _ in range(lost):
        with pytest.raises(WorkerLost):
            read(PAGE)
    assert read(PAGE).title == "Tide pools"


def test_a_worker_ends_with_who_asked_it_and_knows_nothing_of_torch():
    code = (
        "import asyncio, sys; from arenarl.domains.research import pages as w\n"
        "asyncio.run(w.read_html_apart(b'', 'u', None, 9)); print(w._idle[0].pid, "
        "'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pid, *loaded = done.stdout.split()
    assert loaded == ["False", "False"]
    deadline = time.monotonic() + 10
    while subprocess.run(["ps", "-p", pid], capture_output=True, check=False).returncode == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    "charset", ["punycode", "idna", "unicode_escape", "utf-7", "base64", "zlib", "rot13", "no\0name", "é", "x" * 5000]
)
def test_a_codec_that_the_web_has_not_is_none(charset):
    html = PAGE + b"<p>" + "é".encode() * 60_000  # as Punycode, seconds
    start = time.process_time()
    assert read_html(html, "http://a/", charset).text == read_html(html, "http://a/").text
    assert time.process_time() - start < 5


def test_the_webs_codecs_are_read():
    for codec in WEB_CODECS - {"iso8859-12", "ascii"}:  # there is no part 12
        assert (
            "1950"
            in read_html(
                PAGE.decode().replace("它讲述了潮池与时间的故事，很多人喜欢。", "").encode(codec), "http://a/", codec
            ).text
        )


def test_fetching_gives_a_page_up_that_cannot_be_parsed_in_time():
    async def fetch(url, **settings):
        return await Fetcher(WebConfig(**settings), on_loopback).fetch(url)

    with site() as (_, url):
        with pytest.raises(FetchError, match="could not be parsed: it took longer than 1 s"):
            asyncio.run(fetch(f"{url}/paragraphs", timeout_s=1.0))
        assert asyncio.run(fetch(f"{url}/good")).title == "Tide pools"


PARTS = [
    "<p>", "<p>word ", "<div>", "<b>", "<ul><li>a", "<table><tr><td>a", "<a href=x>y</a>", "<span>a</span>", "<br>a",
    "<!--", "&amp;", "<p a=1 ", "\0", "word ", "<p>. ", "<h1>a</h1>", "<script>", "<style>a", "<iframe>", "<svg><a>",
    "<math>", "<![CDATA[", "\xff",
]  # fmt: skip


@pytest.mark.slow(seconds=30)
@pytest.mark.parametrize("part", PARTS)
def test_no_page_takes_longer_than_it_may(part):
    """Two million characters each: the page or a given-up page,
    of which a parser left to itself would take for ever."""
    html = b"<html><body><article>" + part.encode("latin-1") * (2_000_000 // len(part))
    try:
        asyncio.run(asyncio.wait_for(read_html_apart(html, "http://a/", None, 1.5), 60))
    except WorkerLost:
        pass


@pytest.mark.parametrize("part", ["1", "y", ". ", "中"])
def test_a_page_is_searched_in_time_linear_in_its_length(part):
    """Half a million characters: what grows with their square takes minutes."""
    text, start = part * (500_000 // len(part)), time.process_time()
    extract_snippet("1 y 中中 word", [text], 60, "T")
    assert chunks(text, 128) is not None and extract_summary(text, 2000) and cut(text, 60)
    assert time.process_time() - start < 8
