"""A small HTTP server with OpenAI's chat-completions interface whose verdicts come from the embedded judge,
with faults on request.

    python -m arenarl.judges.server --config configs/quickstart.yaml --port 8765 [--faults 0.3]

For tests, demos and `judge_faults`: it lets the LLM path run without a key. What it judges it reads from the prompt
alone, as an LLM would; only a query's constraints, which the domain's truth needs, come from the run's data, by the
query's text. The judge prompts of public benchmarks it answers in their forms (benchmark_replies.py). Its verdicts are
simulated, and of a query without a truth nothing but noise. Replies at temperature 0 repeat themselves, others have
noise of their own each time.
"""

import argparse
import asyncio
import json
import random
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web

from arenarl.config.command_line import command_line, parse_arguments
from arenarl.config.schema import SIMULATED_MODEL, Config, JudgeConfig
from arenarl.domains.domain import Truth, make_domain
from arenarl.domains.rubrics import Rubric
from arenarl.judges.benchmark_replies import Reply, benchmark_reply
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.judges.judge import Examiner, make_examiner, rubric_of
from arenarl.judges.prompts import Shown, read_prompt
from arenarl.llm.prompts import sections_of, unquoted
from arenarl.system.database import json_hash
from arenarl.system.errors import UserError
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import Query, Trajectory, messages_of, prompt_messages, read_queries, text_of

FAULTS = ("rate_limit", "error_500", "hang", "cut", "truncated", "prose", "wrong_range", "missing")
# rate_limit: 429 with Retry-After · hang: no reply for `hang_s` · cut: the connection closes within the body · and in
# the reply's text: truncated JSON, prose around whole JSON (which can still be read), a score out of range, a missing
# number
_OVERALL = "overall"
RUBRIC = {  # what it replies to a request for a query's rubric, whatever the query
    "rubrics": [
        {
            "dimension": dimension,
            "title": title,
            "description": f"Does the answer do well on {title}?",
            "importance": importance,
        }
        for dimension, title, importance in (
            ("Coverage / Completeness", "all parts of the query", "critical"),
            ("Instruction / Context Alignment", "every constraint named", "critical"),
            ("Grounding / Citation Quality", "facts that the tools returned", "important"),
            ("Depth / Insight / Explanation", "reasons for the choice", "nice_to_have"),
            ("Communication Quality", "a clear order", "nice_to_have"),
        )
    ]
}
_CONSTRAINT = "The answer meets it"  # the description of an item of a checklist, whose title is a constraint's name


class Unknown(Truth):
    """Of a query without a truth: 5 in every dimension, so that noise alone decides."""

    def __init__(self, rubric: Rubric):
        self.rubric = rubric

    def dimensions(self) -> dict[str, float]:
        return dict.fromkeys(self.rubric.names, 5.0)


class JudgeServer:
    """Args:
    queries: by their text.
    judge: the noise of the embedded judge behind it.
    faults: share of the requests that get one of `kinds`, each as often.
    delay_s: how long a reply takes.
    key: which key is asked for; None takes any.
    log: called with {"model", "messages": hash, "fault": kind or None, "reply":
    the verdict as sent, or None} for every request.
    """

    models: tuple[str, ...] = (SIMULATED_MODEL,)

    def __init__(
        self,
        queries: Mapping[str, Query],
        examine: Examiner,
        judge: JudgeConfig,
        seed: int = 0,
        *,
        faults: float = 0.0,
        kinds: Sequence[str] = FAULTS,
        delay_s: float = 0.0,
        hang_s: float = 30.0,
        key: str | None = None,
        log: Callable[[dict[str, Any]], None] = lambda line: None,
    ):
        self.queries = queries
        self.judge = EmbeddedJudge(
            judge, lambda query, trajectory: examine(query, trajectory) or Unknown(rubric_of(query)), seed
        )
        self.faults, self.kinds, self.delay_s, self.hang_s, self.key, self.log = (
            faults,
            kinds,
            delay_s,
            hang_s,
            key,
            log,
        )
        self.seen: Counter[str] = Counter()
        self._rng = random.Random(stable_seed(seed, "faults"))

    def app(self) -> web.Application:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._complete)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.key is not None and given != self.key:
            return _refusal(401, f"wrong key: {given}")
        return await self._reply(request, await request.json())

    async def _reply(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        name = json_hash(body["messages"])
        fault = self._rng.choice(self.kinds) if self._rng.random() < self.faults else None
        try:
            verdict = await self._said(body, self.seen[name] if body.get("temperature") else 0)
        except (ValueError, LookupError) as error:
            return _refusal(400, f"not a prompt of ours: {error}")
        is_sent = fault not in ("rate_limit", "error_500", "hang", "cut")
        self.seen[name] += is_sent  # so that what is asked again for want of a reply is the same request
        await asyncio.sleep(self.delay_s)
        text = _spoilt(verdict if isinstance(verdict, str) else json.dumps(verdict), verdict, fault)
        self.log({"model": body.get("model"), "messages": name, "fault": fault,
                  "reply": verdict if fault in (None, "prose") else None,
                  "text": text if is_sent else None})  # fmt: skip
        if fault == "rate_limit":
            return web.json_response({"error": {"message": "slow down"}}, status=429, headers={"Retry-After": "0.2"})
        if fault == "error_500":
            return _refusal(500, "out of order")
        if fault == "hang":
            await asyncio.sleep(self.hang_s)
            return _refusal(504, "too late")
        completion = _completion(body, text)
        if fault == "cut":
            whole = json.dumps(completion).encode()
            response = web.StreamResponse(
                headers={"Content-Type": "application/json", "Content-Length": str(len(whole))}
            )
            await response.prepare(request)
            await response.write(whole[: len(whole) // 2])
            request.transport.close()
            return response
        return web.json_response(completion)

    async def _said(self, body: dict[str, Any], repeat: int) -> Reply:
        """The reply to a request that was answered `repeat` times before. Raises ValueError and LookupError for what is
        no prompt that this knows."""
        messages = body["messages"]
        if len(messages) > 1 and (text := messages[1]["content"]).startswith("# Query\n"):
            return self._checklist(text) if '{"checklist": [' in text.rpartition("\n")[2] else RUBRIC
        try:
            shown = read_prompt(messages)
        except (ValueError, LookupError):
            if (reply := benchmark_reply(messages)) is None:
                raise
            return reply
        return await self._verdict(shown, repeat)

    async def _verdict(self, shown: Shown, repeat: int) -> dict[str, Any]:
        """What the embedded judge says of the trajectories in the prompt, in the form that the prompt asks for."""
        # below it, what a world showed first
        asked = shown.query if shown.query in self.queries else shown.query.partition("\n\n")[0]
        query, form = self.queries[asked], json.loads(re.sub(r"<[^>]*>", "null", shown.form))
        trajectories = [
            Trajectory(query.query_id, prompt_messages(query) + messages_of(turns), "answer") for turns in shown.agents
        ]
        sees = {"process_aware": shown.kind != "answer", "show_tool_results": shown.kind == "results"}
        judge = EmbeddedJudge(replace(self.judge.config, **sees), self.judge.examine, self.judge.seed)
        known = (*rubric_of(query).names, _OVERALL)
        if "scores" in form:
            together = await judge.score_together(query, trajectories, repeat)
            return {
                "scores": [
                    {"agent": number, "explanation": "simulated", "score": score}
                    for number, score in enumerate(together, start=1)
                ]
            }
        if "items" in form:
            return {"items": await self._answers(judge, query, trajectories[0], shown.rubric, repeat)}
        if "winners" in form:
            chosen = await judge.choose(query, trajectories, len(form["winners"]), repeat)
            return {"winners": [position + 1 for position in chosen]}
        rubric = [line[2:].partition(":")[0] for line in shown.rubric.split("\n")]
        wanted = list(form["agent_1"]) if "agent_1" in form else rubric if len(rubric) == 1 else [_OVERALL]
        asked = tuple(dict.fromkeys(name if name in known else _OVERALL for name in wanted))
        verdict = judge.verdict(query, judge.views(*trajectories), asked, ("server", tuple(wanted), repeat))
        scores = [{name: one[name if name in known else _OVERALL] for name in wanted} for one in verdict.dimensions]
        return (
            {f"agent_{number}": one for number, one in enumerate(scores, start=1)}
            if "agent_1" in form
            else {"score": scores[0][wanted[0]]}
        )

    def _checklist(self, prompt: str) -> dict[str, Any]:
        """The constraints of the query that a prompt for a checklist quotes;
        of one without a truth, what any rubric asks."""
        query = self.queries["\n".join(unquoted(sections_of(prompt, re.compile("# (Query|Task)"))["Query"]))]
        try:
            titles = list(self.judge.checklist(query))
        except UserError:
            return {"checklist": RUBRIC["rubrics"]}
        kind = {"dimension": "Instruction / Context Alignment", "importance": "important", "description": _CONSTRAINT}
        return {"checklist": [{"title": title, **kind} for title in titles]}

    async def _answers(
        self, judge: EmbeddedJudge, query: Query, trajectory: Trajectory, rubric: str, repeat: int
    ) -> dict[str, bool]:
        """Of an item that is a constraint what the embedded judge says of it;
        of any other, whether the whole is worth half of the points."""
        met = (await judge.check_items(query, trajectory, repeat)) or {}
        overall = await judge.score_overall(query, trajectory, repeat)
        items = [re.fullmatch(r"- (\w+): (.*?)(?: \(.*\): .*)?", line) for line in rubric.split("\n")]
        return {item[1]: met.get(item[2], overall >= 5) for item in items if item}


def _spoilt(text: str, verdict: Reply, fault: str | None) -> str:
    """The reply's text with its fault, if it is one of the text.
    Of one that is no JSON, the last word is wrong or missing."""
    if fault == "truncated":
        return text[: len(text) * 2 // 3]
    if fault == "prose":
        return (
            f"<think>\nThe first looks like {{10}}.\n</think>\n\nHere is my verdict:\n```json\n"
            f"{text}\n```\nBoth {{agents}} tried."
        )
    if fault in ("wrong_range", "missing") and isinstance(verdict, str):
        return re.sub(
            r"\w+\W*$", "0" if fault == "wrong_range" else "", re.sub(r"(?m)^confidence.*", "", text).rstrip()
        )
    if fault in ("wrong_range", "missing"):
        spoilt = json.loads(text)
        inner = _innermost(spoilt)
        first = next(iter(inner))
        if fault == "missing":
            del inner[first]
        else:
            inner[first] = [99] if first in ("winners", "scores") else 11.0
        return json.dumps(spoilt)
    return text


def _innermost(verdict: Any) -> dict[str, Any]:
    """The first object within that holds none."""
    inner = verdict[0] if isinstance(verdict, list) else next(iter(verdict.values()))
    return (
        _innermost(inner)
        if isinstance(inner, dict) or (isinstance(inner, list) and inner and isinstance(inner[0], dict))
        else verdict
    )


def _completion(body: dict[str, Any], text: str) -> dict[str, Any]:
    """OpenAI's form. Tokens are counted as a quarter of the characters."""
    prompt, reply = sum(len(text_of(message.get("content"))) for message in body["messages"]) // 4, len(text) // 4
    return {
        "id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": body["model"],
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply},
    }  # fmt: skip


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)


def queries_by_text(config: Config) -> dict[str, Query]:
    """All queries of the run's data that a judge may be asked about.
    Raises UserError if different ones share a text."""
    folder = Path(config.data.folder)
    queries = [query for name in ("rl_queries", "test_queries") for query in read_queries(folder / f"{name}.jsonl")]
    by_text = {query.query: query for query in queries}
    if any(by_text[query.query].task != query.task for query in queries):
        raise UserError(
            f"{folder}: different queries share a text, by which this server knows them; "
            "set judge.train.name=embedded for them"
        )
    return by_text


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def running_server(
    config: str, overrides: Sequence[str], port: int, *options: str, module: str = "arenarl.judges.server"
) -> Iterator[str]:
    """The address of a server in a process of its own."""
    command = [sys.executable, "-m", module, *command_line(config, overrides), "--port", str(port), *options]
    process = subprocess.Popen(command)
    try:
        while not _answers(port):
            if process.poll() is not None:
                raise UserError(f"the server {module} ended with exit code {process.returncode}")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def add_server_options(parser: argparse.ArgumentParser, port: int = 8765) -> None:
    parser.add_argument("--port", type=int, default=port)
    parser.add_argument("--faults", type=share, default=0.0, help="share of faulty replies")
    parser.add_argument("--kinds", nargs="+", default=FAULTS, choices=FAULTS, help="kinds of faults")
    parser.add_argument("--delay-s", type=float, default=0.0, help="seconds per reply")
    parser.add_argument("--hang-s", type=float, default=30.0, help="seconds that a hanging request hangs")
    parser.add_argument("--log", type=Path, help="log requests to this JSONL file")


def share(text: str) -> float:
    """An option's value from 0 to 1."""
    if not 0 <= float(text) <= 1:
        raise ValueError(text)
    return float(text)


def server_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the options of `add_server_options` are to a JudgeServer."""
    file = arguments.log.open("w", buffering=1, encoding="utf-8") if arguments.log else None
    return {
        "faults": arguments.faults, "kinds": arguments.kinds, "delay_s": arguments.delay_s, "hang_s": arguments.hang_s,
        "log": lambda line: file and file.write(json.dumps(line) + "\n"),
    }  # fmt: skip


def serve(server: JudgeServer, port: int) -> None:
    """Until a signal ends it. Raises UserError if the port cannot be used."""
    try:
        web.run_app(server.app(), host="127.0.0.1", port=port, print=None, handle_signals=True)
    except OSError as error:
        raise UserError(f"port {port} cannot be used: {error.strerror}; choose another --port") from error


def main() -> None:
    # the run whose data holds the queries, and whose judge.train has the noise
    config, arguments = parse_arguments(__doc__, add_server_options)

    domain = make_domain(config.environment, config.data)
    queries, examine = queries_by_text(config), make_examiner(domain)
    if unknown := sum(examine is None or not domain.has_truth(query) for query in queries.values()):
        print(f"{unknown} of {len(queries)} queries have no truth: the verdicts on them are noise", flush=True)
    server = JudgeServer(
        queries,
        examine or (lambda query, trajectory: None),
        config.judge.train,
        config.seed,
        **server_options(arguments),
    )
    serve(server, arguments.port)


if __name__ == "__main__":
    from arenarl.system.errors import guarded

    guarded(main)
