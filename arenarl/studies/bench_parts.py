"""What the benches of a training step are made of: a scripted policy, a slow judge, and how much judging is hidden.

**The policy** has random weights, or those of a packaged model, and any size. It never ends a turn by itself, so that
every step generates the same number of tokens; `Script` writes tool calls and answers over them.

**The judge** is a process of its own on localhost: `with delayed_judge(delay_s, concurrency) as url`. Each call takes
`delay_s`. Like a real service it admits `concurrency` calls at once and refuses more. Its scores are drawn from what it
is shown, so that the same tournament makes the same calls again.

**Overlap**: how much of a step's judging can go on while the step generates and computes log-probabilities, and how
much did. A call can start once both its trajectories have ended, if it is sure to be made (`sure_calls`); else once its
group is complete and the matches that it waits for are over. From the times at which trajectories ended follows the
least time at which any scheduler can end all judging (`least_end_s`). With E, when the step asks for its rewards:

    total      = least time that judging takes if all of it begins at E
    least wait = least time that it goes on after E, beginning as early as the graph allows
    wait       = seconds that the step really waited, from E on

`judge_hidden_possible` = (total - least wait) / total: the share of the judging that can be hidden at all.
`judge_hidden_share` = (total - wait) / (total - least wait): how much of that was hidden. Both are strict: time of HTTP
and of our own code counts as wait, and no scheduler may reach the least times.
"""

import asyncio
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from operator import itemgetter
from pathlib import Path

import torch
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen3ForCausalLM

from arenarl.config.schema import Config, ScratchConfig
from arenarl.domains.environments import make_environment
from arenarl.domains.travel.teacher import Teacher
from arenarl.judges.judge import Verdict
from arenarl.plan import memory
from arenarl.rollout.generation import GeneratedTurn, TurnRequest
from arenarl.rollout.policy import (
    PACKAGED,
    build_scratch_model,
    folder_of,
    load_model,
    load_tokenizer,
    scratch_config,
    train_tokenizer,
)
from arenarl.system.event_loops import LoopThread
from arenarl.system.seeds import stable_seed
from arenarl.tournament.ranking import Match, Ranking
from arenarl.tournament.topologies import surely_meets
from arenarl.training.judging import Judging
from arenarl.training.sft_data import as_text
from arenarl.trajectory import Query, Trajectory

# beside `tiny`, which is the YAML's policy.scratch. Their tokenizer knows fewer tokens, and thinks nothing of the rest
SHAPES = {"qwen3-1.7b": memory.SHAPES["Qwen/Qwen3-1.7B"], "qwen3-8b": memory.SHAPES["Qwen/Qwen3-8B"]}
GOING_ON = 0.6  # share of its turns, but for the last, that call a tool; the others answer
GRACE_S = 60  # that a call may take above the judge's delay before it is given up

Generate = Callable[[TurnRequest], Awaitable[GeneratedTurn]]


class Script:
    """Writes over a generated turn, whose length it keeps:
    some of the policy's tokens as a thought, then a tool call or an answer."""

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
        goes_on = not is_last and random.Random(request.seed).random() < GOING_ON
        tail = [*(self.search if goes_on else self.answer), self.end]
        said = turn_ids[len(self.head) : len(turn_ids) - len(tail)]
        thought = [token if token in self.ordinary else self.filler for token in said]
        return GeneratedTurn([*self.head, *thought, *tail])


def _count(part: list[int], token_ids: list[int]) -> int:
    """
    >>> _count([1, 2], [1, 2, 1, 1, 2])
    2
    """
    return sum(token_ids[place : place + len(part)] == part for place in range(len(token_ids)))


def build_policy(
    config: Config, shape: str, queries: list[Query], folder: Path, layers: int | None = None
) -> tuple[str, int]:
    """Return a folder with a policy that never ends a turn, and its number of parameters.

    A packaged model keeps its weights and its tokenizer.
    Any other shape has random weights and a tokenizer of the embedded world's texts.

    Args:
        layers: keep only the first ones; None keeps all.
    """
    if shape in PACKAGED:
        model, tokenizer = load_model(folder_of(shape), config.policy.dtype), load_tokenizer(folder_of(shape))
    else:
        tokenizer = _tokenizer_of_the_world(config, queries)
        model = _random_model(config, shape, tokenizer)
    if layers:
        model.model.layers, model.config.num_hidden_layers = model.model.layers[:layers], layers
        if getattr(model.config, "layer_types", None):  # Llama's config has none
            model.config.layer_types = model.config.layer_types[:layers]
    _never_end(model, tokenizer.eos_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder), model.num_parameters()


def _tokenizer_of_the_world(config: Config, queries: list[Query]) -> PreTrainedTokenizerBase:
    environment = make_environment(config.environment, config.data.language)
    teacher = Teacher(environment.world, environment)
    taught = [teacher.solve(query, random.Random(index), 0.5) for index, query in enumerate(queries)]
    texts = [message["content"] for trajectory in taught for message in as_text(trajectory.messages)]
    return train_tokenizer(texts, environment.tools, config.policy.scratch.vocab_size)


def _random_model(config: Config, shape: str, tokenizer: PreTrainedTokenizerBase) -> Qwen3ForCausalLM:
    torch.manual_seed(config.seed)
    if shape not in SHAPES:
        return build_scratch_model(config.policy.scratch, tokenizer).to(getattr(torch, config.policy.dtype))
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # a GPU draws a billion numbers in a moment
        sizes = SHAPES[shape]
        layer = (sizes.hidden, sizes.intermediate, sizes.layers, sizes.heads, sizes.kv_heads, sizes.head_dim)
        scratch = ScratchConfig(*layer, rope_theta=1e6, max_positions=40960)
        # the tokenizer may know a part of the vocabulary
        full = scratch_config(scratch, tokenizer, vocab_size=sizes.vocabulary, dtype=config.policy.dtype)
        return Qwen3ForCausalLM._from_config(full)


@torch.no_grad()
def _never_end(model: PreTrainedModel, end: int) -> None:
    """Make the first dimension of the residual stream a constant, and point the end of a turn against it.

    A trained model's last norm divides that constant by about 40, so the weight against it is large.
    """
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[0] = layer.mlp.down_proj.weight[0] = 0
    model.model.embed_tokens.weight[:, 0] = model.lm_head.weight[:, 0] = 1
    model.lm_head.weight[end, 0] = -3000


def noisy_scores(group: int, shown: Sequence[int]) -> list[float]:
    """A score for each trajectory shown: its quality, N(0, 1), and the call's noise on it, N(0, .7)."""
    noise = random.Random(stable_seed("call", group, *shown))
    return [random.Random(stable_seed("quality", group, i)).gauss() + noise.gauss(0, 0.7) for i in shown]


async def serve(delay_s: float, concurrency: int) -> None:
    """Answer POST /judge, `{"group": 0, "shown": [i, j]}`, with `{"scores": [...]}` after `delay_s`, until stdin ends.

    Above `concurrency` calls at once the answer is 429. The port, a free one, is printed first.
    """
    under_way = 0

    async def judge(request: web.Request) -> web.Response:
        nonlocal under_way
        asked = await request.json()
        if under_way == concurrency:
            raise web.HTTPTooManyRequests
        under_way += 1
        await asyncio.sleep(delay_s)
        under_way -= 1
        return web.json_response({"scores": noisy_scores(asked["group"], asked["shown"])})

    app = web.Application()
    app.router.add_post("/judge", judge)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


@contextmanager
def delayed_judge(delay_s: float, concurrency: int) -> Iterator[str]:
    """The URL of a judge that lives as long as the block.

    It ends when its stdin does, so also where its parent is killed; Ctrl-C is not for it, but for its parent.
    """
    command = [sys.executable, "-m", "arenarl.studies.bench_parts", str(delay_s), str(concurrency)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            port = process.stdout.readline().strip()
            if not port:
                raise RuntimeError(f"the judge did not start: exit code {process.wait()}")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()  # it holds nothing that needs an orderly end, and calls under way are not waited for


@dataclass(frozen=True)
class Overlap:
    """One step's judging. Seconds; `generation_s` is the time from the first trajectory's end to E."""

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
        """`judge_hidden_share`; None where nothing can be hidden."""
        can_be_hidden_s = self.total_s - self.least_wait_s
        return (self.total_s - self.wait_s) / can_be_hidden_s if can_be_hidden_s else None


def measure_overlap(
    judging: Judging, topology: str, concurrency: int, delay_s: float, asked: float, answered: float
) -> Overlap:
    """Of judging that was asked for its outcomes, E, and gave them, at these times by perf_counter."""
    rankings = [outcome.ranking for outcome in judging.outcomes()]
    ended = [list(group.ended_G) for group in judging.groups]
    at_once = [[asked] * len(ended_G) for ended_G in ended]
    return Overlap(
        sum(ranking.judge_calls for ranking in rankings),
        asked - min(map(min, ended)),
        least_end_s(at_once, rankings, topology, concurrency, delay_s) - asked,
        max(0.0, least_end_s(ended, rankings, topology, concurrency, delay_s) - asked),
        answered - asked,
    )


def least_end_s(
    ended: Sequence[Sequence[float]], rankings: Sequence[Ranking], topology: str, concurrency: int, delay_s: float
) -> float:
    """No scheduler is through with the groups' calls before, if trajectory g of group k ends at `ended[k][g]`.

    Calls that can start at `t` or later take `delay_s` for every `concurrency` of them, from `t` on; and if each has
    `k` others after it, one by one, these come on top. This holds for every `t` and `k`.
    """
    is_sure = surely_meets(topology) != "nobody"
    calls: list[tuple[float, int]] = []  # (earliest start, calls that come after it, one by one)
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
    """For each match, the longest chain of later ones that wait for it: an entrant plays its matches one by one.
    Sorted by round."""
    after = [0] * len(matches)
    for k in reversed(range(len(matches))):
        one, later = matches[k], range(k + 1, len(matches))
        shares = [n for n in later if {one.i, one.j} & {matches[n].i, matches[n].j}]
        after[k] = max((1 + after[n] for n in shares if matches[n].round > one.round), default=0)
    return after


class HTTPJudge:
    """A judge of trajectories at the address of a `delayed_judge`, which admits `concurrency` calls at once."""

    def __init__(self, url: str, concurrency: int):
        self.url, self.concurrency = url, concurrency

    def __enter__(self) -> "HTTPJudge":
        self._thread = LoopThread("http-judge")
        self._thread.submit(self._open()).result()
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.submit(self._session.close()).result()
        self._thread.close()

    async def compare(self, query: Query, first: Trajectory, second: Trajectory, repeat: int = 0) -> Verdict:
        asked = {"group": query.query_id, "shown": [stable_seed(one.messages) for one in (first, second)]}
        scores = await self._thread.run(self._ask(asked))
        return Verdict(tuple({"total": score} for score in scores), itemgetter("total"))

    async def _open(self) -> None:
        self._slots = asyncio.Semaphore(self.concurrency)
        self._session = ClientSession(
            self.url, connector=TCPConnector(limit=0), timeout=ClientTimeout(sock_read=GRACE_S), raise_for_status=True
        )

    async def _ask(self, asked: dict) -> list[float]:
        async with self._slots, self._session.post("/judge", json=asked) as reply:
            return (await reply.json())["scores"]


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]), int(sys.argv[2])))
