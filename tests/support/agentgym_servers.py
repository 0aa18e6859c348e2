"""A stand-in for AgentGym's servers on localhost: their routes, fields and replies, over a world that counts.

Item n is won by n + 1 actions with the word "up". `faults` maps a route to the faults of its next requests. The forms
follow the code of the servers in WooooDyy/AgentGym.
"""

import asyncio

from aiohttp import web

NUMBERED = ("searchqa", "webarena", "webshop", "sqlgym")  # by env_idx
GREETINGS = {"textcraft": "TextCraft", "babyai": "BabyAI", "sciworld": "ScienceWorld", "alfworld": "AlfWorld"}
ITEMS = {"alfworld": "game", "searchqa": "id", "webarena": "idx", "webshop": "session_id", "sqlgym": "item_id"}
BROKEN = {"status": (500, "Internal Server Error"), "prose": (200, "<html>busy</html>"), "cut": (200, '{"observati'),
          "field": (200, '{"id": null}'), "error": (200, '{"error": "The id 0 is not valid."}'),
          "redirect": (307, "/"), "deep": (200, "[" * 100_000), "latin": (200, b'{"id": "\xe9"}')}  # fmt: skip


class StandIn:
    """A server of one kind; `restart` forgets all environments and counts them from 0 again."""

    def __init__(self, kind):
        self.kind, self.id_field = kind, "env_idx" if kind in NUMBERED else "id"
        self.faults, self.requests, self.most = {}, [], 0
        self.restart()
        self.app = web.Application()
        self.app.router.add_get("/", self.greet)
        posts = ("create", "reset", "step") + (() if kind in ("alfworld", "webshop", "sqlgym") else ("close",))
        gets = ("observation", "available_actions") + (("instruction_text",) if kind == "webshop" else ())
        for method, routes in (("POST", posts), ("GET", gets)):
            for route in routes:
                self.app.router.add_route(method, f"/{route}", self.answer)

    def restart(self):
        self.worlds, self.count = {}, 0  # number -> (item, value)

    async def greet(self, request):
        name = GREETINGS.get(self.kind)
        return web.json_response(f"This is environment {name}." if name else "ok")

    async def answer(self, request):
        route = request.path.removeprefix("/")
        body = (
            await request.json()
            if request.method == "POST"
            else {key: int(value) for key, value in request.query.items()}
        )
        self.requests.append((route, body))
        fault = self.faults[route].pop(0) if self.faults.get(route) else None
        if fault == "hang":
            await asyncio.sleep(30)
        if fault == "close":
            request.transport.close()
        if fault == "restart":
            self.restart()
        if fault in BROKEN:
            status, text = BROKEN[fault]
            body = text if isinstance(text, bytes) else text.encode()
            return web.Response(status=status, body=body, headers={"Location": "/"}, content_type="application/json")
        try:
            return web.json_response(getattr(self, route)(body))
        except KeyError as error:  # searchqa and the like fail, the others catch it
            if self.kind == "webarena" and route == "step":
                return web.json_response(
                    {"observation": str(error), "reward": 0, "terminated": False, "truncated": False, "info": None}
                )
            if self.kind in NUMBERED:
                return web.Response(status=500, text="Internal Server Error")
            return web.json_response({"error": f"The id {error} is not valid."})

    def create(self, body):
        assert body == ({"id": 0} if self.kind == "searchqa" else {})
        number, self.count = self.count, self.count + 1
        self.worlds[number], self.most = (0, 0), max(self.most, self.count)
        if self.kind == "webarena":
            return {"env_idx": number}
        return number if self.kind in NUMBERED else {"id": number}

    def view(self, number):
        item, value = self.worlds[number]
        return f"At {value} of {item + 1}."

    def reset(self, body):
        further = {"alfworld": {"world_type": "Text"}, "webarena": {"seed": 0}}.get(self.kind, {})
        number, item_field = body[self.id_field], ITEMS.get(self.kind, "data_idx")
        assert body == {self.id_field: number, item_field: body[item_field]} | further
        self.worlds[number]  # raises KeyError for a lost environment
        self.worlds[number] = body[item_field], 0
        seen = self.view(number)
        return {
            "textcraft": {"id": number, "observation": seen, "done": False, "reward": 0},
            "babyai": {"observation": seen, "reward": 0, "score": 0, "deleted": False, "done": False},
            "sciworld": {"task_description": "Count.", "observation": seen, "reward": 0, "score": 0, "done": False},
            "alfworld": {"id": number, "observation": seen, "available_actions": ["up", "down"], "task_type": "count"},
            "searchqa": "the question", "webshop": ["the shop", None], "sqlgym": ["the question", None],
            "webarena": {"observation": "the page alone", "sites": ["map"], "object": "Count."},
        }[self.kind]  # fmt: skip

    def step(self, body):
        assert set(body) == {self.id_field, "action"}
        number, action = body[self.id_field], body["action"]
        item, value = self.worlds[number]
        value += "up" in action
        self.worlds[number], done = (item, value), value > item
        won, seen = float(done), self.view(number)
        return {
            "textcraft": {"observation": seen, "reward": int(won), "done": done},
            "babyai": {"observation": seen, "reward": won, "score": won, "done": done},
            "sciworld": {"observation": seen, "reward": 7, "score": int(100 * won), "done": done},
            "alfworld": {"observation": seen, "reward": won, "available_actions": ["up"], "done": done},
            "searchqa": {"observation": seen, "reward": won, "done": done, "info": None},
            # before the end WebArena's reward says that the action could be carried out
            "webarena": {"observation": seen, "reward": 1.0, "terminated": done, "truncated": False, "info": {}},
            "webshop": {"state": seen, "reward": won, "done": done, "info": None},
            "sqlgym": {"state": seen, "reward": won, "done": done, "info": {}},
        }[self.kind]  # fmt: skip

    def observation(self, body):
        return self.view(body[self.id_field])

    def available_actions(self, body):
        assert set(body) == {"id"} and self.kind == "alfworld"
        return ["up", "down"]

    def instruction_text(self, body):
        return "Count."

    def close(self, body):
        return self.worlds.pop(body[self.id_field], None) is not None
