"""Estimate a stage's LLM calls before it starts, with tokens and cost by the config's prices, typical and at most.

The calls are counted by playing a group's tournament with random scores, the tokens by building its prompts. A typical
trajectory is a stored baseline, or before the data is prepared a teacher's trajectory; typical replies do not think. At
most, each trajectory fills `rollout.max_tokens` and each reply `max_reply_tokens`. Not included are replies that are
requested once more, verdicts of `judge.verifier` on the curve and the evaluation, and the LLMs behind tools.
"""

import asyncio
import json
import math
import random
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from arenarl.config.schema import PROMPT_TOKENS, Config, JudgeConfig, LLMConfig
from arenarl.domains.domain import make_domain
from arenarl.domains.environments import environment_class, environment_maker
from arenarl.judges.judge import JUDGE_CALLS, Judge
from arenarl.judges.llm import LLMJudge
from arenarl.judges.verifier import Verifier
from arenarl.llm.reply_store import Usage, cost_text
from arenarl.llm.requests import Message
from arenarl.rollout.environment import trait
from arenarl.rollout.instances import temporary_environment
from arenarl.system.errors import UserError
from arenarl.system.progress import is_main_process
from arenarl.tournament.schedules import parse_budget
from arenarl.tournament.topologies import paper_calls
from arenarl.training.arena import Arena
from arenarl.training.rewards import REWARDS
from arenarl.trajectory import Query, RolloutGroup, Trajectory, estimate_tokens, read_jsonl

_COUNTED = ("elo", "random_reference", "circular", "dgr")  # topologies whose calls are counted, not computed
_EXPLANATION = "A sentence about what the agent did well, and one of its faults, as the listwise prompt asks for."


class CountingClient:
    """Stands in for `LLMClient`: counts calls and tokens, and replies at random.
    If `is_most`, each reply counts as long as it can be."""

    def __init__(self, is_most: bool = False):
        self.usage, self.is_most = Usage(), is_most
        self._rng = random.Random(0)

    async def ask(
        self, llm: LLMConfig, messages: Sequence[Message], reply_type: type[BaseModel], *_: Any, **__: Any
    ) -> BaseModel:
        reply = reply_type.model_validate(self._invent(reply_type))
        tokens_in = sum(estimate_tokens(message["content"]) for message in messages)
        tokens_out = llm.max_reply_tokens if self.is_most else estimate_tokens(json.dumps(reply.model_dump()))
        self.usage += Usage(calls=1, tokens_in=tokens_in, tokens_out=tokens_out, cost=llm.cost(tokens_in, tokens_out))
        return reply

    def check(self) -> None:
        """Do nothing: no call fails."""

    def _invent(self, reply_type: type[BaseModel]) -> dict[str, Any]:
        invented: dict[str, Any] = {}
        for name, field in reply_type.model_fields.items():
            if name in ("winners", "scores"):
                numbers = list(range(1, reply_type.model_json_schema()["properties"][name]["minItems"] + 1))
                scores = [self._rng.uniform(0, 10) for _ in numbers]
                pairs = zip(numbers, scores, strict=True)
                listed = [{"agent": agent, "explanation": _EXPLANATION, "score": score} for agent, score in pairs]
                invented[name] = numbers if name == "winners" else listed
            elif get_origin(field.annotation) is Literal:
                invented[name] = get_args(field.annotation)[0]
            elif get_origin(field.annotation) is list:  # new rubrics, pivotal turns
                invented[name] = [f"{_EXPLANATION} {name}"] * 2 if name in ("merits", "faults") else [1]
            elif field.annotation is str:
                invented[name] = _EXPLANATION
            elif field.annotation is bool:
                invented[name] = self._rng.random() < 0.5
            else:
                is_nested = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
                invented[name] = self._invent(field.annotation) if is_nested else self._rng.uniform(0, 10)
        return invented


Call = tuple[tuple, dict[str, Any]]  # the arguments of a call, by position and by name


class JudgeRecorder:
    """Stands in for a judge: replies at random, and records the arguments of each method's first call.
    Weights and checklists are the judge's own."""

    def __init__(self, judge: Judge):
        self.judge, self.calls = judge, dict[str, Call]()
        self._stand_in = LLMJudge(JudgeConfig(), CountingClient())

    def __getattr__(self, name: str) -> Any:
        if name not in JUDGE_CALLS:
            return getattr(self.judge, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            self.calls.setdefault(name, (arguments, options))
            if name == "check_items":
                return {item: True for item in [*self.judge.checklist(arguments[0]), *options.get("rubrics", ())]}
            return await getattr(self._stand_in, name)(*arguments, **options)

        return call


def estimate_rl(
    config: Config, queries: Sequence[Query], baselines: dict[str, Trajectory], is_most: bool = False
) -> Usage:
    """Estimate an RL run, rewards, watching judge and curve, from a few queries with a trajectory each."""
    client, total = CountingClient(is_most), Usage()
    training = config.judge.training.values()
    for judge in (judge for judge in training if judge.name == "llm"):
        groups = [group_of_copies(query, baselines[query.query_id], config.rollout.group_size) for query in queries]
        reward_invented(config, LLMJudge(judge, client), groups)
        more = most_calls(config) * len(queries) / max(1, client.usage.calls) if is_most else 1.0
        rolled_out = config.rl.groups_at_most if is_most else config.rl.groups
        share = config.rl.rollouts * rolled_out / len(training)
        total += take_times(client, max(1.0, more) * share / len(queries))
    for judge in (LLMJudge(judge, client) for judge in config.judge.watching.values() if judge.name == "llm"):
        for query in queries:
            asyncio.run(judge.score(query, baselines[query.query_id]))
    total += take_times(client, _count_watched(config, is_most) / len(queries))
    return total + _estimate_cases(config.judge.eval, queries, baselines, client, config.curve_cases)


def reward_invented(config: Config, judge: Judge, groups: Sequence[RolloutGroup]) -> None:
    """Reward the groups, so that the judge counts its calls. Raises UserError if a user's function fails."""
    client = judge.client if isinstance(judge, LLMJudge) else CountingClient()
    verifier = Verifier(config.judge.verifier, client)
    arena = Arena(judge, config.reward, config.tournament, config.group_stage, verifier, config.seed)
    try:
        arena.reward_groups(groups)
    except Exception as error:
        if ":" not in config.reward.name or isinstance(error, UserError):
            raise
        raised = f"reward.name={config.reward.name} raised {error!r:.200} on invented trajectories"
        raise UserError(f"{raised}; its judge calls cannot be counted") from error


def tokens_per_call(config: Config) -> float | None:
    """Return the mean number of tokens per judge call of the reward, if `judge.train` were an LLM.

    None if the reward makes no calls, if no trajectory is stored to size prompts by, or if a user's reward fails on
    invented trajectories.
    """
    client = CountingClient()
    groups = [group_of_copies(query, one, config.rollout.group_size) for query, one in _samples(config).items()]
    try:
        reward_invented(config, LLMJudge(config.judge.train, client), groups)
    except UserError:
        return None
    usage = client.usage
    return (usage.tokens_in + usage.tokens_out) / usage.calls if usage.calls else None


def most_calls(config: Config) -> int:
    """Return the most judge calls, without the verifier's, for one group of valid, different trajectories."""
    size, tournament, reward = config.rollout.group_size, config.tournament, REWARDS.get(config.reward.name)
    is_outcome = reward is not None and not reward.asks_judge
    if is_outcome and not config.reward.tournament_if_equal:
        return 0
    has_fixed_calls = ":" in tournament.topology or tournament.topology in _COUNTED
    if not (is_outcome or reward and reward.plays_topology) or has_fixed_calls:  # all groups have equally many calls
        trajectory = Trajectory("", [{"role": "assistant", "content": "<answer>\n\n</answer>"}], "answer")
        client = CountingClient()
        query = Query("", make_domain(config.environment, config.data).name, "", "en", "")
        reward_invented(config, LLMJudge(JudgeConfig(), client), [group_of_copies(query, trajectory, size)])
        return client.usage.calls
    both_orders = paper_calls(tournament.topology, size) or 2 * parse_budget(tournament.matches, size)
    return both_orders if tournament.bidirectional else both_orders // 2


def judge_calls(config: Config, stage: str) -> dict[str, int]:
    """Return the maximum calls of a stage by use, over all judges of `judge.eval`.

    The number for the watching judge is a mean, because its groups are drawn.
    """
    both_orders = 2 * len(config.judge.eval)
    if stage == "rl":
        calls = {
            "rewards": config.rl.rollouts * config.rl.groups_at_most * most_calls(config),
            "the curve": config.curve_cases * both_orders,
        }
        return calls | (
            {"the watching judge": math.ceil(_count_watched(config, is_most=True))} if config.judge.watching else {}
        )
    if stage == "evaluate":
        trajectories = count_test_queries(config) * count_attempts(config) * len(config.evaluated)
        calls = {"the evaluation": trajectories * both_orders}
        return calls | ({"the bracket": 2 * _count_bracket(config)} if config.evaluate.bracket else {})
    return {}


def _count_bracket(config: Config) -> int:
    """Return the maximum number of matches of `evaluate.bracket`, without those against the baseline. It has the first
    sample of each policy and decoding."""
    entrants = len(config.evaluated) * len(config.evaluate.decodings)
    return count_test_queries(config) * (entrants - 1) if config.evaluate.bracket else 0


def _count_watched(config: Config, is_most: bool) -> float:
    """Return the mean number of trajectories that `judge.watch` scores in an RL run, without or with all the groups
    that `rl.resample_equal` allows."""
    groups = config.rl.groups_at_most if is_most else config.rl.groups
    return config.judge.watch_share * config.rl.rollouts * groups * config.rollout.group_size


def count_attempts(config: Config) -> int:
    """Return the number of trajectories per policy and query of an evaluation.

    In a world that ends trajectories, each turn budget has its own trajectories. Classes that do not follow our
    interface (TRL's, OpenEnv's) are counted as such worlds.
    """
    attempts, budgets = len(config.evaluate.attempts), len(config.evaluate.max_turns or ())
    if budgets < 2:
        return attempts
    world = environment_class(config.environment.name)
    return attempts if hasattr(world, "call") and trait(world, "needs_answer") else attempts * budgets


def count_test_queries(config: Config) -> int:
    """Return the planned number of test queries; count them for published data (UserError without the file)."""
    domain = make_domain(config.environment, config.data)
    subtasks = 1 if config.data.divide else len(domain.subtasks)  # a divided pool counts as one subtask
    planned = 0 if domain.has_own_queries else config.data.test_per_subtask * subtasks
    return planned or len(domain.read_split("test"))


def count_sft_trajectories(config: Config) -> int:
    """Return the planned number of SFT trajectories; for prepared published data that is not divided, count them."""
    path = Path(config.data.folder) / "sft.jsonl"
    if not path.is_file() or config.data.divide:
        return config.data.sft_size
    is_own = make_domain(config.environment, config.data).has_own_queries or config.data.source
    return sum(1 for _ in read_jsonl(path)) if is_own else config.data.sft_size


def _estimate_cases(
    judges: Sequence[JudgeConfig], queries: Sequence[Query], baselines: dict[str, Trajectory], client: CountingClient,
    cases: int,
) -> Usage:  # fmt: skip
    """Estimate comparisons of two trajectories, in both orders, by every LLM among `judges`."""
    for judge in (LLMJudge(judge, client) for judge in judges if judge.name == "llm"):
        for query in queries:
            asyncio.run(judge.compare(query, baselines[query.query_id], baselines[query.query_id]))
    return take_times(client, 2 * cases / len(queries))


def take_times(client: CountingClient, factor: float) -> Usage:
    """Return the client's usage times `factor`, and reset the client."""
    usage, client.usage = client.usage, Usage()
    return Usage(**{name: type(value)(round(value * factor, 4)) for name, value in asdict(usage).items()})


def group_of_copies(query: Query, trajectory: Trajectory, size: int) -> RolloutGroup:
    """Return a group of copies, numbered at the end of the answer, because identical trajectories enter once."""
    *earlier, last = trajectory.messages
    meta = dict.fromkeys(("turns", "tool_calls", "tool_errors", "policy_tokens"), 1) | trajectory.meta
    variants = [last["content"].replace("</answer>", f"{number}\n</answer>") for number in range(size)]
    messages = ([*earlier, {**last, "content": content}] for content in variants)
    return RolloutGroup(query, [replace(trajectory, messages=variant, meta=meta) for variant in messages])


def estimate(config: Config, stage: str) -> tuple[Usage | None, Usage]:
    """Return a stage's LLM usage, typical and at most; typical is None if no trajectory is stored to size prompts by.
    Raises UserError if a user's reward fails on invented trajectories."""
    typical, domain = _samples(config), make_domain(config.environment, config.data)
    queries = list(typical) or [Query("", domain.name, "", config.data.language, "")]
    full = dict.fromkeys(queries, _full_trajectory(config))
    return (_estimate(config, stage, typical, False) if typical else None), _estimate(config, stage, full, True)


def _estimate(config: Config, stage: str, samples: dict[Query, Trajectory], is_most: bool) -> Usage:
    queries, by_id = list(samples), {query.query_id: trajectory for query, trajectory in samples.items()}
    if stage == "rl":
        return estimate_rl(config, queries, by_id, is_most)
    count, judges = count_test_queries(config) * count_attempts(config), config.judge.eval
    client = CountingClient(is_most)
    usage = _estimate_cases(judges, queries, by_id, client, count * len(config.evaluated))
    usage += _estimate_cases(judges[:1], queries, by_id, client, _count_bracket(config))
    for llm in config.evaluate.api.values():
        usage += _estimate_policy(config, llm, samples, is_most, count)
    return usage


def _estimate_policy(
    config: Config, llm: LLMConfig, samples: dict[Query, Trajectory], is_most: bool, count: int
) -> Usage:
    """Estimate `count` trajectories of a model behind an API: each turn sends all earlier messages."""
    client, turns = CountingClient(), config.test_turns
    longest = [("user", PROMPT_TOKENS), *[("assistant", config.rollout.max_tokens // turns)] * turns]
    for trajectory in samples.values():
        sizes = [(one["role"], estimate_tokens(json.dumps(one, ensure_ascii=False))) for one in trajectory.messages]
        length = 0
        for role, size in longest if is_most else sizes:
            if role == "assistant":
                client.usage += Usage(calls=1, tokens_in=length, tokens_out=size, cost=llm.cost(length, size))
            length += size
    return take_times(client, count / len(samples))


def _samples(config: Config) -> dict[Query, Trajectory]:
    """Return a few test queries with a trajectory each: the stored baseline; the teacher's if nothing is prepared."""
    domain = make_domain(config.environment, config.data)
    if (Path(config.data.folder) / "test_queries.jsonl").is_file():
        queries, baselines = domain.read_test_set()
        return {query: baselines[query.query_id] for query in queries[:5] if baselines}
    if domain.splits is None or domain.solve is None or config.data.source or config.environment.name == "mcp":
        return {}
    few = replace(config.data, test_per_subtask=1, sft_size=1, rl_size=1, baseline_attempts=1)
    few = replace(few, research=replace(few.research, rephraser=LLMConfig()))
    domain = make_domain(config.environment, few)
    with temporary_environment(environment_maker(config.environment, few.language)) as environment:
        splits = domain.splits(environment, lambda queries: queries, None)
        (_, queries), (_, baselines) = next(splits), next(splits)
    return dict(zip(queries, map(Trajectory.from_record, baselines), strict=True))


def _full_trajectory(config: Config) -> Trajectory:
    """Return an invented trajectory that fills its turns and tokens; the last turn is the answer."""
    rollout = config.rollout
    text = "字" * round(1.5 * rollout.max_tokens) if config.data.language == "zh" else "text" * rollout.max_tokens
    chars = max(1, len(text) * min(rollout.max_turn_tokens, rollout.max_tokens) // rollout.max_tokens)
    *thoughts, answer = (text[start : start + chars] for start in range(0, len(text), chars))
    turns = [{"role": "assistant", "reasoning_content": thought, "content": ""} for thought in thoughts]
    last = {"role": "assistant", "reasoning_content": "", "content": f"<answer>\n{answer}\n</answer>"}
    return Trajectory("", [{"role": "user", "content": ""}, *turns, last], "answer")


def estimate_lines(config: Config, stage: str) -> list[str]:
    """Return the estimate as a line, and a warning where it exceeds `judge.max_cost`; no line if no LLM is called."""
    judge = config.judge
    also = {"rl": [*judge.training.values(), *judge.watching.values()], "evaluate": config.evaluate.api.values()}
    llms = [llm for llm in [*judge.eval, *also.get(stage, ())] if llm.name == "llm"]
    if stage not in also or not llms:
        return []
    try:
        typical, most = estimate(config, stage)
    except UserError as error:
        return [f"estimate for {stage}: not possible: {error}"]
    return describe_estimate(f"estimate for {stage}", stage, typical, most, llms, "judge.max_cost", judge.max_cost)


def describe_estimate(
    title: str, what: str, typical: Usage | None, most: Usage, llms: Collection[LLMConfig], option: str,
    limit: float | None,
) -> list[str]:  # fmt: skip
    """Return an estimate as a line, and a warning if the cost of `what` exceeds the `limit` that `option` sets."""
    has_prices = all(None not in (llm.price_in, llm.price_out) for llm in llms)
    about = "none, because no baselines are stored, which are needed for prompt sizes"
    about = f"about {_in_words(typical, has_prices)}" if typical else about
    if not has_prices:
        about += "; set price_in and price_out to see the cost"
    lines = [f"{title}: {about}; at most {_in_words(most, has_prices)}"]
    if limit is not None and most.cost > limit:
        is_too_low = typical is not None and typical.cost > limit
        kind, end = ("typical", "will") if is_too_low else ("highest possible", "may")
        cost = f"the {kind} cost of {what}, {cost_text((typical if is_too_low else most).cost)}"
        how = f"the run {end} stop early; raise {option}, or take a cheaper judge"
        setting = f"{option}{' ' if option.startswith('--') else '='}{limit:g}"
        lines.append(f"warning: {setting} is below {cost}: {how}")
    return lines


def _in_words(usage: Usage, has_prices: bool) -> str:
    tokens = f"{_in_millions(usage.tokens_in)} tokens in, {_in_millions(usage.tokens_out)} out"
    return f"{usage.calls:,} LLM calls, {tokens}" + (f", cost {cost_text(usage.cost)}" if has_prices else "")


def _in_millions(count: float) -> str:
    return f"{count / 1e6:,.2f}M" if count >= 1e5 else f"{count:,.0f}"


def print_estimate(config: Config, stage: str) -> None:
    """Print the estimate if the stage calls an LLM; on the main process only."""
    if is_main_process():
        for line in estimate_lines(config, stage):
            print(line, flush=True)
