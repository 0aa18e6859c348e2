"""A local stand-in for Amap's REST endpoints, and a proxy that sends restapi.amap.com to it.

The library `requests` reads the proxy from HTTPS_PROXY and the certificate from REQUESTS_CA_BUNDLE, so Amap's server
runs unchanged. The replies follow Amap's public documentation; the service itself was never called.
"""

import asyncio
import ssl
import subprocess
from contextlib import contextmanager

from aiohttp import web

from arenarl.system.event_loops import LoopThread

HOST = "restapi.amap.com"
PLACES = {  # id -> Amap's record of a place; [] is an empty field
    "B1": {
        "id": "B1", "name": "宽窄巷子", "type": "风景名胜", "typecode": "110000", "address": "金河路口宽窄巷子",
        "location": "104.053800,30.669600", "cityname": "成都市", "business_area": "宽窄巷子", "alias": [],
        "biz_ext": {"rating": "4.8", "cost": []},
    },
    "B2": {
        "id": "B2", "name": "静 咖啡", "type": "餐饮服务;咖啡厅", "typecode": "050500", "address": [],
        "location": "104.060000,30.670000", "cityname": "成都市", "business_area": [], "alias": [],
        "biz_ext": {"rating": "4.5", "cost": "38.00", "opentime2": "10:00-22:00"},
    },
}  # fmt: skip
OK = {"status": "1", "info": "OK", "infocode": "10000"}
STEP = {
    "instruction": "沿金河路向东行驶300米", "road": "金河路", "distance": "300", "orientation": "东", "duration": "60",
}  # fmt: skip
LINE = {
    "name": "地铁4号线", "departure_stop": {"name": "宽窄巷子"}, "arrival_stop": {"name": "骡马市"}, "distance": "900",
    "duration": "120",
}  # fmt: skip
SEGMENT = {
    "walking": {"distance": "100", "duration": "80", "steps": []}, "bus": {"buslines": [LINE]}, "railway": {"name": []},
}  # fmt: skip


class StandIn:
    """`requests` has the path and parameters of each request. A search for 满 exceeds the quota; one for 塌 fails."""

    def __init__(self):
        self.requests = []

    def app(self):
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        return app

    async def _answer(self, request):
        path, parameters = request.path, dict(request.query)
        self.requests.append((path, parameters))
        if parameters.get("keywords") == "满":
            return web.json_response({"status": "0", "info": "CUQPS_HAS_EXCEEDED_THE_LIMIT", "infocode": "10021"})
        if parameters.get("keywords") == "塌":
            return web.Response(status=502, text="<html>bad gateway</html>")
        return web.json_response(OK | self._content(path, parameters))

    def _content(self, path, parameters):
        if path == "/v3/place/detail":
            return {"pois": [PLACES[parameters["id"]]]}
        if path.startswith("/v3/place/"):
            return {"count": "2", "suggestion": {"keywords": [], "cities": []}, "pois": list(PLACES.values())}
        if path == "/v3/geocode/regeo":  # Amap leaves the city empty in municipalities such as Beijing
            province = "北京市" if parameters["location"] < "117" else "四川省"
            return {"regeocode": {"addressComponent": {"province": province, "city": [], "district": "x"}}}
        route = {"origin": parameters["origin"], "destination": parameters["destination"]}
        if path == "/v3/direction/transit/integrated":
            transit = {"duration": "600", "walking_distance": "200", "segments": [SEGMENT]}
            return {"route": {**route, "distance": "1200", "transits": [transit]}}
        return {"route": {**route, "paths": [{"distance": "2350", "duration": "540", "steps": [STEP]}]}}


@contextmanager
def standing_in(folder):
    """Yield (the stand-in, environment variables for the server)."""
    stand_in = StandIn()
    with tunnelling(stand_in.app(), HOST, folder) as (address, certificate, _):
        proxies = {"HTTPS_PROXY": address, "https_proxy": address, "NO_PROXY": "", "no_proxy": ""}
        yield stand_in, proxies | {"REQUESTS_CA_BUNDLE": str(certificate)}


@contextmanager
def tunnelling(app, host, folder):
    """Serve an application by TLS as `host`. Yield (a proxy that connects all hosts to it, certificate, the heads of
    the requests to the proxy)."""
    thread, heads = LoopThread("proxy"), []
    certificate, key = _certificate(folder, host)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    runner = web.AppRunner(app, shutdown_timeout=0.1)

    async def start():
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        port = runner.addresses[0][1]
        return await asyncio.start_server(lambda *streams: _tunnel(*streams, port, heads), "127.0.0.1", 0)

    proxy = thread.submit(start()).result(60)
    try:
        yield f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}", certificate, heads
    finally:
        thread.submit(_stop(proxy, runner)).result(60)
        thread.close()


async def _stop(proxy, runner):
    proxy.close()
    await runner.cleanup()


async def _tunnel(reader, writer, port, heads):
    """Answer CONNECT as a proxy does, but connect every host to this machine."""
    heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
    inward, outward = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

    async def copy(source, target):
        try:
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        except OSError:
            pass
        finally:
            target.close()

    await asyncio.gather(copy(reader, outward), copy(inward, writer))


def _certificate(folder, host):
    """Write a self-signed certificate for the host and its key; return both files."""
    files = folder / "host.pem", folder / "host.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={host}"]
    command += ["-addext", f"subjectAltName=DNS:{host}", "-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run(command, check=True, capture_output=True)
    return files
