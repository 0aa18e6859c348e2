"""A small HTTP server with OpenAI's chat-completions interface and simulated verdicts, for tests and demos.

    python -m arenarl.judges.server --config configs/quickstart.yaml --port 8765 [--faults 0.3]

It runs the LLM path without a key: the embedded judge computes the verdicts, and --faults adds faulty replies. Like an
LLM, it reads everything from the prompt, except the query's constraints: it finds them in the run's data by the query's
text. For a query without a truth, verdicts are only noise. At temperature 0 replies to equal prompts are equal,
otherwise each reply has new noise. `benchmark_replies.py` serves the judge prompts of public benchmarks.
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
from arenarl.system.errors import UserError, run_cli
from arenarl.trajectory import Query, Trajectory, messages_of, prompt_messages, read_queries

_RUBRIC = (  # (dimension, title, importance)
    ("Coverage / Completeness", "all parts of the query", "critical"),
    ("Instruction / Context Alignment", "every constraint named", "critical"),
    ("Grounding / Citation Quality", "facts that the tools returned", "important"),
    ("Depth / Insight / Explanation", "reasons for the choice", "nice_to_have"),
    ("Communication Quality", "a clear order", "nice_to_have"),
)
RUBRIC = {  # the reply to every request for a query's rubric
    "rubrics": [
        {"dimension": name, "title": title, "description": f"Does the answer do well on {title}?", "importance": level}
        for name, title, level in _RUBRIC
    ]
}
_CONSTRAINT = {  # a checklist item; its title is the constraint's name
    "dimension": "Instruction / Context Alignment", "importance": "important", "description": "The answer meets it",
}  # fmt: skip


class Unknown(Truth):
    """The truth of a query without a truth: 5 in each dimension, so that only noise decides."""

    def __init__(self, rubric: Rubric):
        self.rubric = rubric

    def dimensions(self) -> dict[str, float]:
        return dict.fromkeys(self.rubric.names, 5.0)


class JudgeServer(LocalServer):
    """A server with the embedded judge's verdicts. `queries` are by text, `options` are fields of `LocalServer`."""

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
        """Return the embedded judge's verdict on the trajectories in the prompt, in the requested format."""
        # the world's first observation may follow the query's text
        text = prompt.query if prompt.query in self.queries else prompt.query.partition("\n\n")[0]
        query, form = self.queries[text], json.loads(re.sub(r"<[^>]*>", "null", prompt.form))
        start = prompt_messages(query)
        group = [Trajectory(query.query_id, start + messages_of(turns), "answer") for turns in prompt.agents]
        view = {"process_aware": prompt.kind != "answer", "show_tool_results": prompt.kind == "results"}
        judge = EmbeddedJudge(replace(self.judge.config, **view), self.judge.examine, self.judge.seed)
        if "scores" in form:
            scores = enumerate(await judge.score_together(query, group, repeat), start=1)
            return {"scores": [{"agent": agent, "explanation": "simulated", "score": score} for agent, score in scores]}
        if "winners" in form:
            chosen = await judge.choose(query, group, len(form["winners"]), repeat)
            return {"winners": [position + 1 for position in chosen]}
        items = prompt.rubric.split("\n")
        matches = [re.fullmatch(r"- (\w+): (.*?)(?: \(.*\): .*)?", item) for item in items]
        rubrics = [item[2] for item in matches if item and item[1].startswith("rubric_")]
        if "merits" in form:
            new = await judge.propose_rubrics(query, group, rubrics, repeat)
            signs = {"merits": 1.0, "faults": -1.0}
            return {name: [text for text in new if new[text] == sign] for name, sign in signs.items()}
        if "items" in form:
            # an item that is not a constraint is met if the overall score is at least 5
            met = await judge.check_items(query, group[0], repeat, rubrics)
            overall = await judge.score_overall(query, group[0], repeat)
            return {"items": {item[1]: met.get(item[2], overall >= 5) for item in matches if item}}
        names = [item[2:].partition(":")[0] for item in items]
        names = list(form["agent_1"]) if "agent_1" in form else names if len(names) == 1 else [OVERALL]
        names_turns = names[-1] == "pivotal_turns"
        names = names[:-1] if names_turns else names
        dimensions = {name: name if name in rubric_of(query).names else OVERALL for name in names}
        call = ("server", tuple(names), repeat)
        verdict = judge.verdict(query, judge.views(*group), tuple(dict.fromkeys(dimensions.values())), call)
        scores = [{name: scores[dimensions[name]] for name in names} for scores in verdict.dimensions]
        if names_turns:
            turns = judge.name_turns(query, judge.views(*group), call)
            scores = [agent | {"pivotal_turns": list(numbers)} for agent, numbers in zip(scores, turns, strict=True)]
        if "agent_1" in form:
            reason = {"reason": "simulated"} if "reason" in form else {}
            return reason | {f"agent_{number}": agent_scores for number, agent_scores in enumerate(scores, start=1)}
        return {"score": scores[0][names[0]]}

    def _checklist(self, prompt: str) -> dict[str, Any]:
        """Return the constraints of the query in a checklist prompt; for a query without a truth, the fixed rubric."""
        query = self.queries["\n".join(unquoted(sections_of(prompt, re.compile("# (Query|Task)"))["Query"]))]
        try:
            return {"checklist": [{"title": title, **_CONSTRAINT} for title in self.judge.checklist(query)]}
        except UserError:
            return {"checklist": RUBRIC["rubrics"]}


def queries_by_text(config: Config) -> dict[str, Query]:
    """Return the RL and test queries of the run by text. Raises UserError if different queries have the same text."""
    folder = Path(config.data.folder)
    queries = [query for name in ("rl_queries", "test_queries") for query in read_queries(folder / f"{name}.jsonl")]
    by_text = {query.query: query for query in queries}
    if any(by_text[query.query].task != query.task for query in queries):
        problem = "different queries have the same text, but this server finds queries by text"
        raise UserError(f"{folder}: {problem}; set judge.train.name=embedded for these queries")
    return by_text


def make_server(config: Config, **options: Any) -> JudgeServer:
    """Return the server for a run: with the queries of its data and the noise of its `judge.train`."""
    domain = make_domain(config.environment, config.data)
    queries, examine = queries_by_text(config), make_examiner(domain)
    if unknown := sum(examine is None or not domain.has_truth(query) for query in queries.values()):
        print(f"{unknown} of {len(queries)} queries have no truth: their verdicts are only noise", flush=True)
    return JudgeServer(queries, examine or (lambda query, view: None), config.judge.train, config.seed, **options)


if __name__ == "__main__":
    run_cli(lambda: serve(make_server, __doc__, 8765))
