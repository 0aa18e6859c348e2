"""HTML read by workers: a hostile page costs only its worker."""

import asyncio
import subprocess
import sys
import time

import pytest
from scripts import is_running, wait_until
from sites import ARTICLE, on_loopback, site

from arenarl.config.schema import WebConfig
from arenarl.domains.research import pages
from arenarl.domains.research.pages import WEB_CODECS, read_html, read_html_in_worker
from arenarl.domains.research.web import Fetcher, FetchError
from arenarl.system.workers import WorkerLost

PAGE = ARTICLE.format("").encode()


def read(html, charset=None, timeout_s=60.0):
    return asyncio.run(read_html_in_worker(html, "http://a/", charset, timeout_s))


def test_a_worker_gives_the_same_page_and_is_reused():
    assert read(PAGE) == read_html(PAGE, "http://a/")
    (worker,) = pages._workers._idle
    assert read(b"") is None and read(PAGE.decode().encode("gb18030"), "gb18030") == read(PAGE)
    assert pages._workers._idle == [worker] and worker.poll() is None


def test_pages_are_read_in_parallel():
    async def read_all():
        htmls = (PAGE.replace(b"1950", str(number).encode()) for number in range(30))
        return await asyncio.gather(*(read_html_in_worker(html, "http://a/", None, 60.0) for html in htmls))

    assert all(f"in {number} by" in page.text for number, page in enumerate(asyncio.run(read_all())))


def test_a_dead_or_slow_worker_costs_only_its_page():
    read(PAGE)
    lost = list(pages._workers._idle)
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


def test_a_worker_ends_with_its_parent_and_does_not_load_torch():
    code = """if True:
        import asyncio, sys
        from arenarl.domains.research import pages
        asyncio.run(pages.read_html_in_worker(b"", "u", None, 9))
        print(pages._workers._idle[0].pid, "torch" in sys.modules, "numpy" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pid, *loaded = done.stdout.split()
    assert loaded == ["False", "False"]
    wait_until(lambda: not is_running(int(pid)))


@pytest.mark.parametrize("charset", "punycode idna unicode_escape utf-7 base64 zlib rot13 no\0name é xxxx".split())
def test_codecs_outside_the_web_are_ignored(charset):
    html = PAGE + b"<p>" + "é".encode() * 60_000  # as Punycode, seconds
    start = time.process_time()
    assert read_html(html, "http://a/", charset).text == read_html(html, "http://a/").text
    assert time.process_time() - start < 5


def test_all_codecs_of_the_web_are_read():
    page = PAGE.decode().replace("它讲述了潮池与时间的故事，很多人喜欢。", "")
    for codec in WEB_CODECS - {"iso8859-12", "ascii"}:  # there is no part 12
        assert "1950" in read_html(page.encode(codec), "http://a/", codec).text


def test_a_page_that_cannot_be_parsed_in_time_is_a_fetch_error():
    async def fetch(path, timeout_s):
        return await Fetcher(WebConfig(timeout_s=timeout_s), on_loopback).fetch(path)

    with site() as (_, url):
        with pytest.raises(FetchError, match="could not be parsed: it took longer than 2 s"):
            asyncio.run(fetch(f"{url}/paragraphs", 2.0))
        assert asyncio.run(fetch(f"{url}/good", 60.0)).title == "Tide pools"


PARTS = [
    "<p>word ", "<div>", "<ul><li>a", "<table><tr><td>a", "<span>a</span>", "<!--", "<p a=1 ", "\0", "<![CDATA[", "\xff"
]  # fmt: skip


@pytest.mark.slow(seconds=6)
def test_no_page_takes_longer_than_its_time_limit():
    """Some of these pages of a million characters would keep a parser busy for minutes."""

    async def read_all():
        htmls = (b"<html><body><article>" + part.encode("latin-1") * (1_000_000 // len(part)) for part in PARTS)
        reads = (asyncio.wait_for(read_html_in_worker(html, "http://a/", None, 0.5), 60) for html in htmls)
        return await asyncio.gather(*reads, return_exceptions=True)

    results = asyncio.run(read_all())
    assert all(result is None or isinstance(result, pages.Page | WorkerLost) for result in results), results
