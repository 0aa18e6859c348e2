"""Parts of the step benchmark: a scripted policy, a slow judge, and a measure of hidden judging.

**The policy** has random weights, or those of a packaged model. It never ends a turn by itself, so every step generates
the same number of tokens; `Script` overwrites them with tool calls and answers.

**The judge** takes `delay_s` a call and admits `concurrency` calls at once, like a remote service. A repeated
tournament makes equal calls, because scores depend only on the query and the trajectories shown.

**Hidden judging** runs while the step generates and computes log-probabilities. A call can start once both its
trajectories have ended, if it is sure to be made (`surely_meets`). Otherwise it waits for its whole group and for
earlier matches. `least_end_s` computes the earliest end of all judging under any scheduler. E is the time when the step
requests its rewards:

    total      = least duration of judging if all of it begins at E
    least wait = least time from E to the end of judging if each call begins as early as possible
    wait       = seconds that the step really waited after E

`judge_hidden_possible` = (total - least wait) / total: the share of the judging that can be hidden at most.
`judge_hidden_share` = (total - wait) / (total - least wait): the hidden part of this share. The time of our own code
counts as wait. Perhaps no scheduler reaches the least times.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import ceil
from operator import itemgetter
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen3ForCausalLM

from arenarl.config.schema import Config, ScratchConfig
from arenarl.domains.environments import make_environment
from arenarl.domains.travel.teacher import Teacher
from arenarl.judges.judge import Verdict
from arenarl.plan import memory
from arenarl.rollout import policy as policies
from arenarl.rollout.generation import GeneratedTurn, TurnRequest
from arenarl.rollout.scratch_policy import build_scratch_model, scratch_config, train_tokenizer
from arenarl.system.event_loops import LoopThread
from arenarl.system.seeds import stable_seed
from arenarl.tournament.ranking import Match, Ranking
from arenarl.tournament.topologies import surely_meets
from arenarl.training.judging import Judging
from arenarl.training.sft_data import as_text
from arenarl.trajectory import Query, Trajectory

# besides `tiny`, which is the YAML's policy.scratch; their tokenizer has fewer tokens than the model
SHAPES = {"qwen3-1.7b": memory.SHAPES["Qwen/Qwen3-1.7B"], "qwen3-8b": memory.SHAPES["Qwen/Qwen3-8B"]}
TOOL_CALL_SHARE = 0.6  # share of tool calls in the turns before the last; the other turns answer

Generate = Callable[[TurnRequest], Awaitable[GeneratedTurn]]


class Script:
    """Overwrites a turn with a thought (its own tokens) and a tool call or an answer, and keeps its length."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, generate: Generate, turns: int):
        def encode(text: str) -> list[int]:
            return tokenizer.encode(text, add_special_tokens=False)

        self.generate, self.turns = generate, turns
        self.head = encode("<think>\n")
        call = '{"name": "universal_search", "arguments": {"query": "cafe"}}'
        self.search = encode(f"\n</think>\n\n<tool_call>\n{call}\n</tool_call>")
        self.answer = encode("\n</think>\n\n<answer>\nA cafe in Chengdu.\n</answer>")
        self.end, (self.filler, *_) = tokenizer.eos_token_id, encode(" cafe")
        self.header = encode("<|im_start|>assistant\n")
        self.ordinary = set(range(len(tokenizer))) - set(tokenizer.added_tokens_decoder)

    async def __call__(self, request: TurnRequest) -> GeneratedTurn:
        turn_ids = (await self.generate(request)).token_ids
        is_last = _count(self.header, request.token_ids) == self.turns
        has_call = not is_last and random.Random(request.seed).random() < TOOL_CALL_SHARE
        tail = [*(self.search if has_call else self.answer), self.end]
        kept = turn_ids[len(self.head) : len(turn_ids) - len(tail)]
        thought = [token if token in self.ordinary else self.filler for token in kept]
        return GeneratedTurn([*self.head, *thought, *tail])


def _count(part: list[int], token_ids: list[int]) -> int:
    """Count where `part` occurs in `token_ids`.

    >>> _count([1, 2], [1, 2, 1, 1, 2])
    2
    """
    return sum(token_ids[place : place + len(part)] == part for place in range(len(token_ids)))


def build_policy(
    config: Config, shape: str, queries: list[Query], folder: Path, layers: int | None = None
) -> tuple[str, int]:
    """Return a folder with a policy that never ends a turn, and its number of parameters.

    A packaged model keeps its weights and its tokenizer. Any other shape has random weights and a tokenizer trained on
    the embedded world's texts. With `layers`, only so many first layers are kept.
    """
    if shape in policies.PACKAGED:
        source = policies.folder_of(shape)
        model, tokenizer = policies.load_model(source, config.policy.dtype), policies.load_tokenizer(source)
    else:
        tokenizer = _world_tokenizer(config, queries)
        model = _random_model(config, shape, tokenizer)
    if layers:
        model.model.layers, model.config.num_hidden_layers = model.model.layers[:layers], layers
        if getattr(model.config, "layer_types", None):  # Llama's config has none
            model.config.layer_types = model.config.layer_types[:layers]
    _never_end(model, tokenizer.eos_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder), model.num_parameters()


def _world_tokenizer(config: Config, queries: list[Query]) -> PreTrainedTokenizerBase:
    environment = make_environment(config.environment, config.data.language)
    teacher = Teacher(environment.world, environment)
    trajectories = [teacher.solve(query, random.Random(index), 0.5) for index, query in enumerate(queries)]
    texts = [message["content"] for trajectory in trajectories for message in as_text(trajectory.messages)]
    return train_tokenizer(texts, environment.tools, config.policy.scratch.vocab_size)


def _random_model(config: Config, shape: str, tokenizer: PreTrainedTokenizerBase) -> Qwen3ForCausalLM:
    torch.manual_seed(config.seed)
    if shape not in SHAPES:
        return build_scratch_model(config.policy.scratch, tokenizer).to(getattr(torch, config.policy.dtype))
    sizes = SHAPES[shape]
    layer = (sizes.hidden, sizes.intermediate, sizes.layers, sizes.heads, sizes.kv_heads, sizes.head_dim)
    scratch = ScratchConfig(*layer, rope_theta=1e6, max_positions=40960)
    # the model's full vocabulary, although the tokenizer uses a part of it
    full = scratch_config(scratch, tokenizer, vocab_size=sizes.vocabulary, dtype=config.policy.dtype)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # drawing the weights on a CPU is slow
        return Qwen3ForCausalLM._from_config(full)


@torch.no_grad()
def _never_end(model: PreTrainedModel, end: int) -> None:
    """Make the first dimension of the residual stream constant, and give the end token a large negative weight on it.
    The weight is large because a trained model's last norm divides the constant by about 40."""
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[0] = layer.mlp.down_proj.weight[0] = 0
    model.model.embed_tokens.weight[:, 0] = model.lm_head.weight[:, 0] = 1
    model.lm_head.weight[end, 0] = -3000


class SlowJudge:
    """A judge whose calls take `delay_s`, `concurrency` of them at once.
    All calls wait in one thread, whichever event loop makes them."""

    def __init__(self, delay_s: float, concurrency: int):
        self.delay_s, self.slots = delay_s, asyncio.Semaphore(concurrency)
        self._thread = LoopThread("slow-judge")

    async def compare(self, query: Query, first: Trajectory, second: Trajectory, repeat: int = 0) -> Verdict:
        await self._thread.run(self._wait())
        scores = noisy_scores(query.query_id, [stable_seed(trajectory.messages) for trajectory in (first, second)])
        return Verdict(tuple({"total": score} for score in scores), itemgetter("total"))

    async def _wait(self) -> None:
        async with self.slots:
            await asyncio.sleep(self.delay_s)


def noisy_scores(query: str, trajectories: Sequence[int]) -> list[float]:
    """Return a score for each trajectory of a call: its quality, N(0, 1), plus the call's noise on it, N(0, .7)."""
    noise = random.Random(stable_seed("call", query, *trajectories))
    return [random.Random(stable_seed("quality", query, i)).gauss() + noise.gauss(0, 0.7) for i in trajectories]


@dataclass(frozen=True)
class Overlap:
    """One step's judging: number of calls, and seconds. `generation_s` runs from the first trajectory's end to E."""

    calls: int
    generation_s: float
    total_s: float
    least_wait_s: float
    wait_s: float

    @property
    def possible(self) -> float:
        """`judge_hidden_possible`, 0 to 1."""
        return (self.total_s - self.least_wait_s) / self.total_s

    @property
    def share(self) -> float | None:
        """`judge_hidden_share`; None if nothing can be hidden."""
        can_be_hidden_s = self.total_s - self.least_wait_s
        return (self.total_s - self.wait_s) / can_be_hidden_s if can_be_hidden_s else None


def measure_overlap(
    judging: Judging, topology: str, concurrency: int, delay_s: float, requested: float, ready: float
) -> Overlap:
    """Measure a step's judging from the times (perf_counter) when its outcomes were `requested` (E) and `ready`."""
    rankings = [outcome.ranking for outcome in judging.outcomes()]
    ended = [list(group.ended_G) for group in judging.groups]
    at_once = [[requested] * len(ended_G) for ended_G in ended]
    return Overlap(
        sum(ranking.judge_calls for ranking in rankings),
        requested - min(map(min, ended)),
        least_end_s(at_once, rankings, topology, concurrency, delay_s) - requested,
        max(0.0, least_end_s(ended, rankings, topology, concurrency, delay_s) - requested),
        ready - requested,
    )


def least_end_s(
    ended: Sequence[Sequence[float]], rankings: Sequence[Ranking], topology: str, concurrency: int, delay_s: float
) -> float:
    """Return a time before which no scheduler can end all calls, if trajectory g of group k ends at `ended[k][g]`.

    From `t` on, the calls that cannot start earlier need `delay_s` for every `concurrency` calls. If a chain of `after`
    later calls follows each of them, these add `after` times `delay_s`. The bound is the maximum over `t` and `after`.
    """
    is_sure = surely_meets(topology) != "nobody"
    calls: list[tuple[float, int]] = []  # (earliest start, length of the chain after it)
    for ended_G, ranking in zip(ended, rankings, strict=True):
        for match, after in zip(ranking.matches, chains_after(ranking.matches), strict=True):
            waits_for_two = is_sure and match.round == 0
            start = max(ended_G[match.i], ended_G[match.j]) if waits_for_two else max(ended_G) + match.round * delay_s
            calls += [(start, after)] * len(match.calls)
    ends = []
    for after in {after for _, after in calls}:
        latest_first = enumerate(sorted((start for start, others in calls if others >= after), reverse=True), start=1)
        ends += [start + delay_s * (ceil(count / concurrency) + after) for count, start in latest_first]
    return max(ends)


def chains_after(matches: Sequence[Match]) -> list[int]:
    """Return, for each match, the length of the longest chain of later matches that wait for it.
    An entrant plays its matches one by one. `matches` are sorted by round."""
    after = [0] * len(matches)
    for k in reversed(range(len(matches))):
        match, later = matches[k], range(k + 1, len(matches))
        shares = [n for n in later if {match.i, match.j} & {matches[n].i, matches[n].j}]
        after[k] = max((1 + after[n] for n in shares if matches[n].round > match.round), default=0)
    return after
