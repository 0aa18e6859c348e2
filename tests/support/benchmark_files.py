"""Invented records in the formats of official benchmark files, and a run of `--benchmark` with local servers."""

import asyncio
import base64
import csv
import hashlib
import json

from aiohttp import web
from judge_servers import CALL_LIMITS, answering, serving

from arenarl.benchmarks.run import run_benchmarks
from arenarl.config.load import load_config
from arenarl.config.schema import SIMULATED_MODEL, JudgeConfig
from arenarl.judges.server import JudgeServer

LEVELS = ("1-2", "3-4", "5-6", "7-8", "9-10")


def write_jsonl(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path


def write_csv(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def xor(text, key):
    """Encrypt a text as official files do: XOR with the repeated key, then base64."""
    data = text.encode()
    return base64.b64encode(bytes(byte ^ key[place % len(key)] for place, byte in enumerate(data))).decode()


def hidden(text, canary):
    """Encrypt a text as BrowseComp does."""
    return xor(text, hashlib.sha256(canary.encode()).digest())


def writing_records(count=3):
    domains = ["Education", "Politics & Law"]
    return [
        {
            "index": number + 1, "domain1": domains[number % 2],
            "domain2": "Letter", "query": f"Write a letter number {number}.",
            "checklist": [{"name": f"point {k}", "criteria_description": "is it so?", **dict.fromkeys(LEVELS, "so far")}
                          for k in range(5)],
        }
        for number in range(count)
    ]  # fmt: skip


def judge_server(log, **options):
    """Return the application of a judge server for benchmarks, without queries."""
    return JudgeServer({}, lambda query, trajectory: None, JudgeConfig(), log=log.append, **options).app()


class Policy:
    """A chat-completions server that replies with `say(request)` and records its requests."""

    def __init__(self, say, delay_s=0.0):
        self.say, self.delay_s, self.asked = say, delay_s, []
        self.app = answering(self._reply)

    async def _reply(self, request):
        body = await request.json()
        await asyncio.sleep(self.delay_s)
        self.asked.append(body)
        return web.json_response({
            "id": "1", "object": "chat.completion", "created": 0, "model": "policy-of-the-tests",
            "choices": [{"index": 0, "finish_reason": "stop",
                         "message": {"role": "assistant", "content": self.say(body)}}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20},
        })  # fmt: skip


def api(url, model):
    return {"name": "llm", "model": model, "base_url": url} | CALL_LIMITS


def settings(judge_url, policy_url=None, checkpoint=None, judge_keys=None, **keys):
    """Return overrides of the quickstart for a run in the working directory."""
    judge = api(judge_url, SIMULATED_MODEL) | (judge_keys or {})
    values = {"name": "bench", "judge.eval": [judge], "evaluate.bootstrap": 50, "evaluate.decodings": ["sampled"]}
    values |= {"evaluate.api": {"closed": api(policy_url, "closed")}} if policy_url else {}
    if checkpoint:
        values |= {"evaluate.checkpoints": {"tiny": checkpoint}, "policy.dtype": "float32", "rollout.max_tokens": 24}
    return [f"{key}={json.dumps(value)}" for key, value in (values | keys).items()]


def run_here(root, wanted, say, count=None, seed=0, ports=(0, 0), options=None, judge=None, **keys):
    """Run benchmarks on an API policy; return the requests to policy and judge. `options` are the judge server's."""
    log, policy = [], Policy(say)
    judge = judge or judge_server(log, **(options or {}))
    with serving(judge, ports[0]) as judge_url, serving(policy.app, ports[1]) as policy_url:
        config = load_config(root / "configs" / "quickstart.yaml", settings(judge_url, policy_url, **keys))
        run_benchmarks(config, config.evaluated, wanted, count, seed)
    return policy.asked, log
