"""An HTTP server in a vLLM server's place, for tests."""

from contextlib import contextmanager

import judge_servers
from aiohttp import web


@contextmanager
def serving(replies, status=200):
    """(url, requests): an HTTP server that answers each path with what `replies` says, the rest with 404."""
    requests = []

    async def answer(request):
        requests.append((request.path, await request.json() if request.can_read_body else None))
        if request.path not in replies:
            return web.Response(status=404, text="Not Found")
        return web.json_response(replies[request.path], status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    with judge_servers.serving(app) as url:
        yield url.removesuffix("/v1"), requests
