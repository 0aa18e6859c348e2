"""The web: what a fetched page is, errors, and addresses that must not be fetched."""

import asyncio
import random
from contextlib import contextmanager, suppress
from ipaddress import ip_address, ip_network
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sites import on_loopback, site

from arenarl.config.schema import WebConfig
from arenarl.domains.research.web import MAX_REDIRECTS, Fetcher, FetchError, is_public, resolve


def fetch(url, is_allowed=on_loopback, resolve=resolve, **settings):
    async def run():
        return await Fetcher(WebConfig(**({"timeout_s": 60.0} | settings)), is_allowed, resolve).fetch(url)

    return asyncio.run(run())


@contextmanager
def fetch_error(match):
    with pytest.raises(FetchError, match=match) as caught:
        yield
    assert len(str(caught.value)) < 400


def test_a_page_has_main_text_and_title():
    with site() as (_, url):
        page = fetch(f"{url}/good")
        assert page.title == "Tide pools" and page.url == f"{url}/good"
        assert "Mara Velden, first published in 1950" in page.text and "Login" not in page.text
        assert "\n\n" in page.text and "\n\n\n" not in page.text
        assert fetch(f"{url}/hop?to=/good").text == page.text
        assert fetch(f"{url}/plain").text == "One.\n\nTwo."
        texts = {"gbk": "潇湘", "iso-8859-1": "Café Zürich", "utf-8": "Café Zürich"}
        assert {charset: fetch(f"{url}/plain?charset={charset}").text for charset in texts} == texts
        for path in ("misdeclared", "klingon"):  # wrong encodings
            text = fetch(f"{url}/{path}").text
            assert "Mara Velden" in text and "它讲述了潮池与时间的故事" in text


def test_no_cookies_are_kept():
    async def twice(url):
        fetcher = Fetcher(WebConfig(), on_loopback)
        return [await fetcher.fetch(url), await fetcher.fetch(url)]

    with site() as (server, url):
        asyncio.run(twice(f"{url}/cookie"))
        assert [cookies for cookies in server.requests if isinstance(cookies, dict)] == [{}, {}]


@pytest.mark.parametrize(("path", "reason"), [
    ("status/429", "answers 429"), ("status/500", "answers 500"), ("status/404", "answers 404"),
    ("status/204", "answers 204"), ("cut", "could not be read"), ("gzip_garbage", "could not be read"),
    ("large", "larger than"), ("declared", "larger than"), ("bomb", "larger than"), ("pdf", "not a web page"),
    ("empty", "no main text"), ("loop", "redirects more than 5 times"), ("nowhere", "answers 404"),
    ("slow", "did not answer within 2 s"),
])  # fmt: skip
def test_an_error_has_a_reason_of_one_line(path, reason):
    with site() as (server, url), fetch_error(reason):
        fetch(f"{url}/{path}", timeout_s=2.0 if path == "slow" else 60.0)
    assert server.requests.count("loop") <= MAX_REDIRECTS + 1
    assert server.bytes_sent < 40_000_000  # the download stops long before 50 MB


HOSTS = """
    127.0.0.1 localhost localhost. LOCALHOST 127.1 127.0.1 2130706433 0x7f000001 0x7f.0.0.1 0177.0.0.1 017700000001
    0.0.0.0 0 [::1] [::] [::ffff:127.0.0.1] [::ffff:7f00:1] [0:0:0:0:0:ffff:7f00:0001] [64:ff9b::7f00:1]
    [64:ff9b:1::7f00:1] [2002:7f00:1::] [::127.0.0.1] user@127.0.0.1 example.com@127.0.0.1 ①②⑦.⓪.⓪.① 127。0。0。1
    127.0.0.1%00.example.com
""".split()
HOSTILE = [  # {port} is the port of a server that must not get a request
    *(f"http://{host}:{{port}}/secret" for host in HOSTS),
    "", "http://127.0.0.1:{port}\\@93.184.216.34/secret", "http://\n127.0.0.1:{port}/secret",
    *"""
    http://[fe80::1]:{port}/ http://[fc00::1]:{port}/ http://[fec0::1]:{port}/
    http://[fd00:ec2::254]/latest/meta-data/ http://169.254.169.254/latest/meta-data/
    http://2852039166/latest/meta-data/ http://100.100.100.200/latest/meta-data/ http://metadata.google.internal/
    http://10.0.0.1/ http://172.16.0.1/ http://192.168.1.1/ http://192.0.2.1/ http://198.18.0.1/ http://224.0.0.1/
    http://255.255.255.255/ http://user:word@93.184.216.34/ file:///etc/passwd file://localhost/etc/passwd
    ftp://127.0.0.1/ gopher://127.0.0.1:{port}/_GET data:text/html,<p>x javascript:alert(1) //127.0.0.1:{port}/secret
    /etc/passwd http:// http:///secret http://[::1 http://127.0.0.1:{port}:80/secret http://127.0.0.1:99999/
    """.split(),
]  # fmt: skip


def is_public_at_any_port(address, port):
    """`is_public` without the check of the port, because the test server has another port."""
    return is_public(address, 80)


@pytest.fixture(scope="module")
def secret():
    with site() as (server, url):
        yield server, urlsplit(url).port


@pytest.mark.parametrize("url", HOSTILE)
def test_a_hostile_address_gets_no_request(secret, url):
    server, port = secret
    with fetch_error("refused|no address|no such host"):
        fetch(url.format(port=port), is_public_at_any_port)
    assert not server.requests


NOT_PUBLIC = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.88.99.0/24
    192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 255.255.255.255/32
    168.63.129.16/32 ::/128 ::1/128 ::/96 64:ff9b:1::/48 100::/64 100:0:0:1::/64 2001:2::/48 2001:db8::/32 3fff::/20
    5f00::/16 fc00::/7 fe80::/10 fec0::/10 ff00::/8 4000::/2 8000::/1
"""  # registries of special addresses, and cloud services


@given(st.sampled_from([ip_network(network) for network in NOT_PUBLIC.split()]), st.integers(0, 2**128 - 1))
@settings(max_examples=500)
def test_special_addresses_are_not_public_in_any_form(network, number):
    address = network[number % network.num_addresses]
    forms = [address]
    if network.version == 4:
        value = int(address)
        mapped, nat64, six_to_four = 0xFFFF << 32 | value, 0x64FF9B << 96 | value, 0x2002 << 112 | value << 80
        teredo = [0x20010000 << 96 | value ^ 0xFFFFFFFF, 0x20010000 << 96 | value << 64]
        forms += map(ip_address, (mapped, nat64, six_to_four, *teredo))
    assert not any(is_public(str(form), port) for form in forms for port in (80, 443))


def test_public_addresses_are_public_at_web_ports_only_and_cloud_metadata_is_not():
    public = "8.8.8.8 1.1.1.1 168.63.129.15 192.0.1.1 2606:4700::1111 2a00:1450::8a 64:ff9b::808:808".split()
    assert all(is_public(address, port) for address in public for port in (80, 443))
    assert not any(is_public(address, port) for address in public for port in (0, 22, 25, 3306, 5432, 6379, 9200))
    for port in (6379, 0):
        with fetch_error("is refused: only ports of the web on public addresses"):
            fetch(f"http://93.184.216.34:{port}/", is_public)
    addresses = """
        192.0.0.192 168.63.129.16 192.0.0.8 192.88.99.1 3fff::1 169.254.169.254 fd00:ec2::254 100.100.100.200
        fd20:ce::254 ::ffff:168.63.129.16 64:ff9b::c000:c0 2002:a83f:8110::1
    """
    assert not any(is_public(address, 80) for address in addresses.split())


def name_server(**answers):
    """Return a name server that gives a name's lists of addresses one after another, then repeats the last."""

    async def resolve(host, port):
        resolve.hosts.append(host)
        lists = answers[host.partition(".")[0]]
        return lists.pop(0) if len(lists) > 1 else lists[0]

    resolve.hosts = []
    return resolve


def test_a_name_with_an_internal_address_is_refused(secret):
    server, port = secret
    for addresses in (["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["2606:4700::1111", "::1"]):
        with fetch_error("refused"):
            fetch(f"http://evil.example:{port}/secret", is_public_at_any_port, name_server(evil=[addresses]))
    assert not server.requests


def test_a_name_is_resolved_once_so_rebinding_fails_and_its_first_address_that_answers_is_used():
    with site() as (server, url):
        port, answers = urlsplit(url).port, name_server(rebind=[["127.0.0.1"], ["10.0.0.1"]])
        page = fetch(f"http://rebind.example:{port}/good", resolve=answers)  # 127.0.0.1 stands for a public address
        assert page.title == "Tide pools" and answers.hosts == ["rebind.example"]
        assert server.requests == [("/good", f"rebind.example:{port}")]
        with fetch_error("refused"):
            fetch(f"http://rebind.example:{port}/good", resolve=answers)
        double = name_server(double=[["127.0.0.2", "127.0.0.1"]])
        page = fetch(f"http://double.example:{port}/good", lambda address, port: True, double)
        assert page.title == "Tide pools"


@pytest.mark.parametrize("target", [
    "http://10.0.0.1/", "http://[::1]:{port}/secret", "http://2130706434:{port}/secret", "//169.254.169.254/latest/",
    "file:///etc/passwd", "http://inside.example:{port}/secret", "http://user@outside.example:{port}/secret",
    "http://[::1", "gopher://127.0.0.1/",
])  # fmt: skip
def test_a_redirect_is_checked_like_the_address_itself(target):
    async def answers(host, port):
        return ["10.0.0.1"] if host == "inside.example" else await resolve(host, port)

    with site() as (server, url), fetch_error("refused|could not be read"):
        fetch(f"{url}/hop?to={target.format(port=urlsplit(url).port)}", resolve=answers)
    assert not server.requests


SCHEMES = "javascript:1 mailto:a@b tel:1 about:blank data: http:foo x:y:z //xn-- http://xn--a/ https: : \x85".split(" ")
PIECES = [*SCHEMES, "http", "https", *":/\\?#@[]%.aé\u3002", "//", "%00", "..", "xn--", "127.0.0.1", "0", "99999"]


def test_any_redirect_gives_a_page_or_a_fetch_error():
    rng = random.Random(21)
    targets = SCHEMES + ["".join(rng.choices(PIECES, k=rng.randint(1, 5))) for _ in range(100)]

    async def resolve_number(host, port):
        return [str(ip_address(host))]  # ValueError for a name

    async def hop(fetcher, url, target):
        with suppress(FetchError):
            await fetcher.fetch(f"{url}/hop?to={quote(target)}")
        with suppress(FetchError):
            await fetcher.fetch(target)

    async def fetch_all(url):
        fetcher = Fetcher(WebConfig(), on_loopback, resolve_number)
        return await asyncio.gather(*(hop(fetcher, url, target) for target in targets), return_exceptions=True)

    with site() as (_, url):
        assert [pair for pair in zip(targets, asyncio.run(fetch_all(url)), strict=True) if pair[1]] == []
