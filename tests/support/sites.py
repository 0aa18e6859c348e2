"""Web sites on localhost."""

import asyncio
import gzip
from contextlib import contextmanager

from aiohttp import web
from judge_servers import serving

ARTICLE = """<html><head><title>Tide pools</title></head><body><nav>Home Login Cookies</nav><article><h1>Tide pools</h1>
<p>The Long Tide is a novel by Mara Velden, first published in 1950 by a small press.</p>
<p>它讲述了潮池与时间的故事，很多人喜欢。</p></article>{}</body></html>"""


HTML, GOOD = {"Content-Type": "text/html"}, ARTICLE.format("")
PAGES = {  # path -> (body, headers) of a fixed page
    "declared": (b"x" * 50_000_000, HTML), "klingon": (GOOD.encode(), {"Content-Type": "text/html; charset=klingon"}),
    "misdeclared": (GOOD.encode("gb18030"), {"Content-Type": "text/html; charset=utf-8"}),
    "paragraphs": (b"<p>" * 660_000, HTML),  # half a minute of parsing
    "gzip_garbage": (b"this is no gzip", HTML | {"Content-Encoding": "gzip"}),
    "bomb": (gzip.compress(bytes(50_000_000)), HTML | {"Content-Encoding": "gzip"}),
    "pdf": (b"%PDF-1.7", {"Content-Type": "application/pdf"}), "empty": (b"", HTML),
    "broken": (b"<" * 3000 + b"\x00\xff</table><p" + b"<div>" * 3000, HTML),
}  # fmt: skip


class Site:
    """A web site with a good page and one page for every fault."""

    def __init__(self):
        self.requests, self.bytes_sent = [], 0
        self.app = web.Application()
        for path in "good slow loop hop cut large plain once cookie".split():
            self.app.router.add_get(f"/{path}", getattr(self, path))
        self.app.router.add_get("/status/{status}", self.status)
        self.app.router.add_get("/secret", self.good)
        for path in PAGES:
            self.app.router.add_get(f"/{path}", self.page)

    async def page(self, request):
        body, headers = PAGES[request.path.removeprefix("/")]
        return web.Response(body=body, headers=headers)

    async def good(self, request):
        self.requests.append((request.path, request.headers["Host"]))
        return web.Response(text=GOOD, content_type="text/html")

    async def slow(self, request):
        await asyncio.sleep(30)

    async def status(self, request):
        return web.Response(status=int(request.match_info["status"]), text="no")

    async def loop(self, request):
        self.requests.append("loop")
        raise web.HTTPFound("/loop")

    async def hop(self, request):
        return web.Response(status=302, headers={"Location": request.query["to"]})

    async def cut(self, request):
        response = web.StreamResponse(headers={"Content-Length": "5000", **HTML})
        await response.prepare(request)
        await response.write(b"<html><p>half")
        request.transport.close()
        return response

    async def large(self, request):
        response = web.StreamResponse(headers=HTML)
        await response.prepare(request)
        for _ in range(500):  # 50 MB
            await response.write(b"<p>word</p>" * 9000)
            self.bytes_sent += 99000
        return response

    async def once(self, request):
        self.requests.append("once")
        return web.Response(status=500) if self.requests == ["once"] else await self.good(request)

    async def cookie(self, request):
        response = await self.good(request)
        self.requests.append(dict(request.cookies))
        response.set_cookie("name", "value")
        return response

    async def plain(self, request):
        """Return text in the charset that the query names, or UTF-8 with a byte order mark."""
        charset, headers = request.query.get("charset"), {"Content-Type": "text/plain"}
        if not charset:
            return web.Response(body=b"\xef\xbb\xbfOne.\nTwo.", headers=headers)
        text = "Café Zürich" if charset != "gbk" else "潇湘"
        return web.Response(body=text.encode(charset), headers={"Content-Type": f"text/plain; charset={charset}"})


@contextmanager
def site():
    one = Site()
    with serving(one.app) as url:
        yield one, url.removesuffix("/v1")


def on_loopback(address, port):
    return address == "127.0.0.1"
