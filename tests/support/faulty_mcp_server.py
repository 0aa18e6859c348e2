"""An MCP server with every kind of fault: `python faulty_mcp_server.py [--port N] [--option ...]`.

It implements the protocol without the SDK, so it starts at once and can send what the SDK never would.
"""

import argparse
import gzip
import json
import os
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TEXT, NUMBER = {"type": "string"}, {"type": "number"}
TOOLS = {
    "echo": {"text": TEXT}, "wait": {"seconds": NUMBER}, "block": {"seconds": NUMBER}, "die": {},
    "die_once": {"mark": TEXT}, "fail": {}, "crash": {}, "huge": {"characters": NUMBER}, "picture": {}, "resources": {},
    "structured": {}, "nothing": {}, "junk": {}, "count": {}, "says_error": {}, "busiest": {}, "json_error": {},
    "no_result": {}, "environment": {"name": TEXT}, "headers": {},
    "packed": {"coding": TEXT, "megabytes": NUMBER, "events": TEXT},
}  # fmt: skip
CONTENTS = {
    "picture": [{"type": "text", "text": "Here:"}, {"type": "image", "data": "A" * 400, "mimeType": "image/png"}],
    "resources": [
        {"type": "resource", "resource": {"uri": "a://b", "text": "the text"}},
        {"type": "resource", "resource": {"uri": "a://c", "blob": "AAAA", "mimeType": "audio/wav"}},
        {"type": "resource_link", "name": "guide", "uri": "https://example.org/guide"},
    ],
    "structured": [], "nothing": [], "no_result": [{"type": "smell"}],
}  # fmt: skip
parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--twice", action="store_true", help="list echo twice")
parser.add_argument("--pages", action="store_true", help="list one tool per page")
parser.add_argument("--endless", action="store_true", help="list pages without end")
parser.add_argument("--modern", action="store_true", help="do not support the old handshake")
parser.add_argument("--refuse", action="store_true", help="exit with a line on stderr")
options = parser.parse_args(None if __name__ == "__main__" else [])  # pytest imports every file for doctests
writing, counted = threading.Lock(), 0
waiting, busiest = [], 0  # running calls of `wait`, and their largest number


def list_tools(cursor):
    names = [*TOOLS, "echo"] if options.twice else list(TOOLS)
    tools = [
        {"name": name, "inputSchema": {"type": "object", "properties": TOOLS[name], "required": list(TOOLS[name])}}
        for name in names
    ]
    page = int(cursor or 0)
    if options.pages or options.endless:
        is_last = page + 1 == len(tools) and not options.endless
        return {"tools": tools[page : page + 1]} | ({} if is_last else {"nextCursor": str(page + 1)})
    return {"tools": tools}


def call_tool(name, given, request):
    global counted, busiest
    if name == "count":
        counted += 1
    elif name in ("wait", "block"):
        waiting.append(name)
        busiest = max(busiest, len(waiting))
        time.sleep(given["seconds"])
        waiting.pop()
    elif name == "die" or (name == "die_once" and not Path(given["mark"]).exists()):
        Path(given.get("mark", os.devnull)).touch()
        print("out of fuel", file=sys.stderr, flush=True)
        os._exit(1)
    elif name == "crash":
        raise ValueError("inside")
    elif name == "junk":
        write("{'not': 'JSON'}")
    text = {
        "echo": given.get("text"), "huge": "x" * int(given.get("characters", 0)),
        "count": f"{counted} of {os.getpid()}", "environment": os.environ.get(given.get("name", ""), "unset"),
        "fail": "no such place", "headers": request, "says_error": "Error: busy.", "busiest": str(busiest),
        "json_error": '{\n  "error": "quota"\n}',
    }.get(name, "done")  # fmt: skip
    result = {"content": CONTENTS.get(name, [{"type": "text", "text": text}]), "isError": name == "fail"}
    return result | ({"structuredContent": {"place": "公园"}} if name == "structured" else {})


def answer(message, request=""):
    """Return the reply to a message; None for a notification."""
    if "id" not in message:
        return None
    parameters = message.get("params") or {}
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        result = result_of(message["method"], parameters, request)
    except Exception as error:
        return reply | {"error": {"code": -32603, "message": str(error)}}
    if result is None:
        return reply | {"error": {"code": -32601, "message": "unknown method"}}
    return reply | {
        "result": result | ({"resultType": "complete", "ttlMs": 0, "cacheScope": "public"} if options.modern else {})
    }


def result_of(method, parameters, request):
    if method == "initialize" and not options.modern:
        server = {"name": "faulty", "version": "1"}
        return {"protocolVersion": parameters["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "server/discover" and options.modern:
        return {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    if method == "tools/list":
        return list_tools(parameters.get("cursor"))
    if method == "tools/call":
        return call_tool(parameters["name"], parameters.get("arguments") or {}, request)


def write(line):
    with writing:
        print(line, flush=True)


def pipe():
    def respond(message):
        if reply := answer(message):
            write(json.dumps(reply))

    for line in sys.stdin:
        message = json.loads(line)
        if (message.get("params") or {}).get("name") == "block":
            respond(message)
        else:
            threading.Thread(target=respond, args=(message,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        reply = answer(message, f"{self.path} {self.headers.get('authorization', '')}".strip())
        body = json.dumps(reply).encode() if reply else b""
        kind, given = "application/json", (message.get("params") or {}).get("arguments") or {}
        self.send_response(200 if reply else 202)
        if (message.get("params") or {}).get("name") == "packed":
            body = body.replace(b"done", b"x" * int(given["megabytes"] * 2**20))
            if given["events"]:
                kind, body = "text/event-stream", b"event: message\ndata: " + body + b"\n\n"
            body = {"gzip": gzip.compress, "deflate": zlib.compress}.get(given["coding"], bytes)(body)
            self.send_header("content-encoding", given["coding"])
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.send_error(405)

    def log_message(self, *arguments):
        pass


if __name__ == "__main__":
    if options.refuse:
        sys.exit(os.environ.get("REASON", "FATAL: no licence for this machine"))
    if options.port:
        ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()
    pipe()
