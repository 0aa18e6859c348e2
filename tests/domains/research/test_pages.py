"""HTML read by workers: a hostile page costs its worker, and no more."""

import asyncio
import subprocess
import sys
import time

import pytest
from sites import ARTICLE, on_loopback, site

from arenarl.config.schema import WebConfig
from arenarl.domains.research import pages
from arenarl.domains.research.pages import WEB_CODECS, WorkerLost, read_html, read_html_apart
from arenarl.domains.research.web import Fetcher, FetchError

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
        htmls = (PAGE.replace(b"1950", str(number).encode()) for number in range(30))
        return await asyncio.gather(*(read_html_apart(html, "http://a/", None, 20.0) for html in htmls))

    assert [f"in {number} by" in page.text for number, page in enumerate(asyncio.run(all_of_them()))] == [True] * 30


def test_a_worker_that_dies_or_takes_too_long_costs_its_page_only():
    read(PAGE)
    lost = list(pages._idle)
    for worker in lost:
        worker.kill()
        worker.wait()
    for _ in lost:
        with pytest.raises(WorkerLost):
            read(PAGE)
    assert read(PAGE).title == "Tide pools"
    with pytest.raises(WorkerLost):
        read(b"<p>word " * 60_000, timeout_s=0.05)
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


@pytest.mark.parametrize("charset", "punycode idna unicode_escape utf-7 base64 zlib rot13 no\0name é xxxx".split())
def test_a_codec_that_the_web_has_not_is_none(charset):
    html = PAGE + b"<p>" + "é".encode() * 60_000  # as Punycode, seconds
    start = time.process_time()
    assert read_html(html, "http://a/", charset).text == read_html(html, "http://a/").text
    assert time.process_time() - start < 5


def test_the_webs_codecs_are_read():
    page = PAGE.decode().replace("它讲述了潮池与时间的故事，很多人喜欢。", "")
    for codec in WEB_CODECS - {"iso8859-12", "ascii"}:  # there is no part 12
        assert "1950" in read_html(page.encode(codec), "http://a/", codec).text


def test_fetching_gives_a_page_up_that_cannot_be_parsed_in_time():
    async def fetch(path, timeout_s):
        return await Fetcher(WebConfig(timeout_s=timeout_s), on_loopback).fetch(path)

    with site() as (_, url):
        with pytest.raises(FetchError, match="could not be parsed: it took longer than 1 s"):
            asyncio.run(fetch(f"{url}/paragraphs", 1.0))
        assert asyncio.run(fetch(f"{url}/good", 20.0)).title == "Tide pools"


PARTS = [
    "<p>", "<p>word ", "<div>", "<b>", "<ul><li>a", "<table><tr><td>a", "<a href=x>y</a>", "<span>a</span>", "<br>a",
    "<!--", "&amp;", "<p a=1 ", "\0", "word ", "<p>. ", "<h1>a</h1>", "<script>", "<style>a", "<iframe>", "<svg><a>",
    "<math>", "<![CDATA[", "\xff",
]  # fmt: skip


@pytest.mark.slow(seconds=15)
def test_no_page_takes_longer_than_it_may():
    """A million characters each: pages or given-up pages, of which a parser left to itself would take for ever."""

    async def all_of_them():
        htmls = (b"<html><body><article>" + part.encode("latin-1") * (1_000_000 // len(part)) for part in PARTS)
        reading = (asyncio.wait_for(read_html_apart(html, "http://a/", None, 1.0), 100) for html in htmls)
        return await asyncio.gather(*reading, return_exceptions=True)

    results = asyncio.run(all_of_them())
    assert all(one is None or isinstance(one, pages.Page | WorkerLost) for one in results), results
