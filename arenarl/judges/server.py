"""A small HTTP server with OpenAI's chat-completions interface whose verdicts come from the embedded judge,
with faults on request.

    python -m arenarl.judges.server --config configs/quickstart.yaml --port 8765 [--faults 0.3]

For tests, demos and `judge_faults`: it lets the LLM path run without a key. What it judges it reads from the prompt
alone, as an LLM would; only a query's constraints, which the domain's truth needs, come from the run's data, by the
query's text. The judge prompts of public benchmarks it answers in their forms (benchmark_replies.py). Its verdicts are
simulated, and of a query without a truth nothing but noise. Replies at temperature 0 repeat themselves, others have
noise of their own each time.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from arenarl.config.schema import SIMULATED_MODEL, Config, JudgeConfig
from arenarl.domains.domain import Truth, make_domain
from arenarl.domains.rubrics import Rubric
from arenarl.judges.benchmark_replies import benchmark_reply
from arenarl.judges.embedded import OVERALL, EmbeddedJudge
from arenarl.judges.judge import Examiner, make_examiner, rubric_of
from arenarl.judges.local_server import LocalServer, Reply, serve
from arenarl.judges.prompts import Prompt, read_prompt
from arenarl.llm.prompts import sections_of, unquoted
from arenarl.system.errors import UserError, guarded
from arenarl.trajectory import Query, Trajectory, messages_of, prompt_messages, read_queries

_RUBRIC = (  # (dimension, title, importance)
    ("Coverage / Completeness", "all parts of the query", "critical"),
    ("Instruction / Context Alignment", "every constraint named", "critical"),
    ("Grounding / Citation Quality", "facts that the tools returned", "important"),
    ("Depth / Insight / Explanation", "reasons for the choice", "nice_to_have"),
    ("Communication Quality", "a clear order", "nice_to_have"),
)
RUBRIC = {  # what it replies to a request for a query's rubric, whatever the query
    "rubrics": [
        {"dimension": name, "title": title, "description": f"Does the answer do well on {title}?", "importance": level}
        for name, title, level in _RUBRIC
    ]
}
_CONSTRAINT = {  # an item of a checklist, whose title is a constraint's name
    "dimension": "Instruction / Context Alignment", "importance": "important", "description": "The answer meets it",
}  # fmt: skip


class Unknown(Truth):
    """Of a query without a truth: 5 in every dimension, so that noise alone decides."""

    def __init__(self, rubric: Rubric):
        self.rubric = rubric

    def dimensions(self) -> dict[str, float]:
        return dict.fromkeys(self.rubric.names, 5.0)


class JudgeServer(LocalServer):
    """Replies as the embedded judge does.

    Args:
        queries: by their text.
        judge: the noise of the embedded judge behind it.
        options: fields of `LocalServer`.
    """

    models = (SIMULATED_MODEL,)

    def __init__(
        self, queries: Mapping[str, Query], examine: Examiner, judge: JudgeConfig, seed: int = 0, **options: Any
    ):
        super().__init__(seed=seed, **options)
        self.queries = queries
        self.judge = EmbeddedJudge(judge, lambda query, view: examine(query, view) or Unknown(rubric_of(query)), seed)

    async def reply(self, body: dict[str, Any], repeat: int) -> Reply:
        messages = body["messages"]
        if len(messages) > 1 and (text := messages[1]["content"]).startswith("# Query\n"):
            return self._checklist(text) if '{"checklist": [' in text.rpartition("\n")[2] else RUBRIC
        try:
            prompt = read_prompt(messages)
        except (ValueError, LookupError):
            if (reply := benchmark_reply(messages)) is None:
                raise
            return reply
        return await self._verdict(prompt, repeat)

    async def _verdict(self, prompt: Prompt, repeat: int) -> dict[str, Any]:
        """What the embedded judge says of the trajectories in the prompt, in the form that the prompt asks for."""
        # below the query's text stands what a world showed first
        text = prompt.query if prompt.query in self.queries else prompt.query.partition("\n\n")[0]
        query, form = self.queries[text], json.loads(re.sub(r"<[^>]*>", "null", prompt.form))
        start = prompt_messages(query)
        group = [Trajectory(query.query_id, start + messages_of(turns), "answer") for turns in prompt.agents]
        sees = {"process_aware": prompt.kind != "answer", "show_tool_results": prompt.kind == "results"}
        judge = EmbeddedJudge(replace(self.judge.config, **sees), self.judge.examine, self.judge.seed)
        if "scores" in form:
            scores = enumerate(await judge.score_together(query, group, repeat), start=1)
            return {"scores": [{"agent": agent, "explanation": "simulated", "score": score} for agent, score in scores]}
        if "winners" in form:
            chosen = await judge.choose(query, group, len(form["winners"]), repeat)
            return {"winners": [position + 1 for position in chosen]}
        items = prompt.rubric.split("\n")
        if "items" in form:
            # an item that is not a constraint is met if the whole is worth half of the points
            met = await judge.check_items(query, group[0], repeat)
            overall = await judge.score_overall(query, group[0], repeat)
            named = [re.fullmatch(r"- (\w+): (.*?)(?: \(.*\): .*)?", item) for item in items]
            return {"items": {item[1]: met.get(item[2], overall >= 5) for item in named if item}}
        names = [item[2:].partition(":")[0] for item in items]
        wanted = list(form["agent_1"]) if "agent_1" in form else names if len(names) == 1 else [OVERALL]
        known = {name: name if name in rubric_of(query).names else OVERALL for name in wanted}
        call = ("server", tuple(wanted), repeat)
        verdict = judge.verdict(query, judge.views(*group), tuple(dict.fromkeys(known.values())), call)
        scores = [{name: scores[known[name]] for name in wanted} for scores in verdict.dimensions]
        if "agent_1" in form:
            return {f"agent_{number}": of_agent for number, of_agent in enumerate(scores, start=1)}
        return {"score": scores[0][wanted[0]]}

    def _checklist(self, prompt: str) -> dict[str, Any]:
        """The constraints of the query that a prompt for a checklist quotes;
        of one without a truth, what any rubric asks."""
        query = self.queries["\n".join(unquoted(sections_of(prompt, re.compile("# (Query|Task)"))["Query"]))]
        try:
            return {"checklist": [{"title": title, **_CONSTRAINT} for title in self.judge.checklist(query)]}
        except UserError:
            return {"checklist": RUBRIC["rubrics"]}


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


def make_server(config: Config, **options: Any) -> JudgeServer:
    """Return the server of the run whose data holds the queries, and whose judge.train has the noise."""
    domain = make_domain(config.environment, config.data)
    queries, examine = queries_by_text(config), make_examiner(domain)
    if unknown := sum(examine is None or not domain.has_truth(query) for query in queries.values()):
        print(f"{unknown} of {len(queries)} queries have no truth: the verdicts on them are noise", flush=True)
    return JudgeServer(queries, examine or (lambda query, view: None), config.judge.train, config.seed, **options)


if __name__ == "__main__":
    guarded(lambda: serve(make_server, __doc__, 8765))
