"""Web sites on localhost."""

import asyncio
import gzip
from contextlib import contextmanager

from aiohttp import web
from judge_servers import serving

ARTICLE = """<html><head><title>Tide pools</title></head><body><nav>Home Login Cookies</nav><article><h1>Tide pools</h1>
<p>The Long Tide is a novel by Mara Velden, first published in 1950 by a small press.</p>
<p>它讲述了潮池与时间的故事，很多人喜欢。</p></article>{}</body></html>"""


class Site:
    """A web site with a good page, and a page for every fault."""

    def __init__(self):
        self.requests, self.bytes_sent = [], 0
        self.app = web.Application()
        pages = (
            "good slow loop hop cut large declared bomb gzip_garbage misdeclared klingon paragraphs "
            "pdf empty plain broken once cookie"
        )
        for path in pages.split():
            self.app.router.add_get(f"/{path}", getattr(self, path))
        self.app.router.add_get("/status/{status}", self.status)
        self.app.router.add_get("/secret", self.good)

    async def good(self, request):
        self.requests.append((request.path, request.headers["Host"]))
        return web.Response(text=ARTICLE.format(""), content_type="text/html")

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
        response = web.StreamResponse(headers={"Content-Length": "5000", "Content-Type": "text/html"})
        await response.prepare(request)
        await response.write(b"<html><p>half")
        request.transport.close()
        return response

    async def large(self, request):
        response = web.StreamResponse(headers={"Content-Type": "text/html"})
        await response.prepare(request)
        for _ in range(500):  # 50 MB
            await response.write(b"<p>word</p>" * 9000)
            self.bytes_sent += 99000
        return response

    async def declared(self, request):
        return web.Response(body=b"x" * 50_000_000, content_type="text/html")

    async def misdeclared(self, request):  # says UTF-8, is GB18030
        return web.Response(
            body=ARTICLE.format("").encode("gb18030"), headers={"Content-Type": "text/html; charset=utf-8"}
        )

    async def klingon(self, request):
        return web.Response(body=ARTICLE.format("").encode(), headers={"Content-Type": "text/html; charset=klingon"})

    async def paragraphs(self, request):  # half a minute of parsing
        return web.Response(text="<p>" * 660_000, content_type="text/html")

    async def gzip_garbage(self, request):
        return web.Response(body=b"this is no gzip", headers={"Content-Type": "text/html", "Content-Encoding": "gzip"})

    async def bomb(self, request):
        return web.Response(
            body=gzip.compress(bytes(50_000_000)), headers={"Content-Type": "text/html", "Content-Encoding": "gzip"}
        )

    async def pdf(self, request):
        return web.Response(body=b"%PDF-1.7", content_type="application/pdf")

    async def empty(self, request):
        return web.Response(text="", content_type="text/html")

    async def broken(self, request):
        return web.Response(body=b"<" * 3000 + b"\x00\xff</table><p" + b"<div>" * 3000, content_type="text/html")

    async def once(self, request):
        self.requests.append("once")
        return web.Response(status=500) if self.requests == ["once"] else await self.good(request)

    async def cookie(self, request):
        response = await self.good(request)
        self.requests.append(dict(request.cookies))
        response.set_cookie("name", "value")
        return response

    async def plain(self, request):
        """In the charset of the query, if it names one."""
        charset = request.query.get("charset")
        text, kind = (
            ("Café Zürich" if charset != "gbk" else "潇湘"),
            "text/plain" + (f"; charset={charset}" if charset else ""),
        )
        return web.Response(
            body=text.encode(charset) if charset else b"\xef\xbb\xbfOne.\nTwo.", headers={"Content-Type": kind}
        )


@contextmanager
def site():
    one = Site()
    with serving(one.app) as url:
        yield one, url.removesuffix("/v1")


def on_loopback(address, port):
    return address == "127.0.0.1"
