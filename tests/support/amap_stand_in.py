"""Amap's REST endpoints on this machine, for a server that asks restapi.amap.com and cannot be told otherwise:
a proxy for it that leads here.

`requests` takes the proxy from HTTPS_PROXY and whom to trust from REQUESTS_CA_BUNDLE, so the server runs unchanged. The
shapes of the replies are assumed, from Amap's public documentation; the service was not asked.
"""

import asyncio
import datetime
import ssl
from contextlib import contextmanager

from aiohttp import web

from arenarl.system.event_loops import LoopThread

HOST = "restapi.amap.com"
PLACES = {  # id → what Amap says of a place; what is empty is []
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
    "instruction": "沿金河路向东行驶300米",
    "road": "金河路",
    "distance": "300",
    "orientation": "东",
    "duration": "60",
}
LINE = {
    "name": "地铁4号线", "departure_stop": {"name": "宽窄巷子"}, "arrival_stop": {"name": "骡马市"}, "distance": "900",
    "duration": "120",
}  # fmt: skip
SEGMENT = {
    "walking": {"distance": "100", "duration": "80", "steps": []}, "bus": {"buslines": [LINE]}, "railway": {"name": []},
}  # fmt: skip


class StandIn:
    """`asked` has the path and the parameters of each request. A search for 满 is answered as one beyond the quota."""

    def __init__(self):
        self.asked = []

    def app(self):
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        return app

    async def _answer(self, request):
        path, given = request.path, dict(request.query)
        self.asked.append((path, given))
        if given.get("keywords") == "满":
            return web.json_response({"status": "0", "info": "CUQPS_HAS_EXCEEDED_THE_LIMIT", "infocode": "10021"})
        if given.get("keywords") == "塌":
            return web.Response(status=502, text="<html>bad gateway</html>")
        return web.json_response(OK | self._said(path, given))

    def _said(self, path, given):
        if path == "/v3/place/detail":
            return {"pois": [PLACES[given["id"]]]}
        if path.startswith("/v3/place/"):
            return {"count": "2", "suggestion": {"keywords": [], "cities": []}, "pois": list(PLACES.values())}
        if path == "/v3/geocode/regeo":  # of a point in a city of its own rank, the city is empty
            province = "北京市" if given["location"] < "117" else "四川省"
            return {"regeocode": {"addressComponent": {"province": province, "city": [], "district": "x"}}}
        route = {"origin": given["origin"], "destination": given["destination"]}
        if path == "/v3/direction/transit/integrated":
            transit = {"duration": "600", "walking_distance": "200", "segments": [SEGMENT]}
            return {"route": {**route, "distance": "1200", "transits": [transit]}}
        return {"route": {**route, "paths": [{"distance": "2350", "duration": "540", "steps": [STEP]}]}}


@contextmanager
def standing_in(folder):
    """(stand-in, the variables for the server's environment)"""
    stand_in, thread, runner = StandIn(), LoopThread("amap"), None
    certificate, key = _certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    runner = web.AppRunner(stand_in.app(), shutdown_timeout=0.1)

    async def start():
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        port = runner.addresses[0][1]
        return await asyncio.start_server(lambda reader, writer: _tunnel(reader, writer, port), "127.0.0.1", 0)

    proxy = thread.submit(start()).result(60)
    try:
        address = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        proxies = {"HTTPS_PROXY": address, "https_proxy": address, "NO_PROXY": "", "no_proxy": ""}
        yield stand_in, proxies | {"REQUESTS_CA_BUNDLE": str(certificate)}
    finally:
        thread.submit(_stop(proxy, runner)).result(60)
        thread.close()


async def _stop(proxy, runner):
    proxy.close()
    await runner.cleanup()


async def _tunnel(reader, writer, port):
    """What a proxy does with CONNECT, but that every host is this machine."""
    await reader.readuntil(b"\r\n\r\n")
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


def _certificate(folder):
    """Files of a certificate for the host, which signs itself, and of its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = folder / "amap.pem", folder / "amap.key"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return files
