"""Parts of the step benchmark: the scripted policy, the slow judge's delay and limit, and hidden judging by hand."""

import asyncio
import math
import time
from random import Random
from types import SimpleNamespace

import pytest
from virtual_clock import run_on_virtual_clock

from arenarl.config.schema import Config, EnvironmentConfig
from arenarl.rollout.generation import GeneratedTurn, TransformersGenerator, TurnRequest
from arenarl.rollout.policy import load_model, load_tokenizer
from arenarl.studies import bench_parts
from arenarl.studies.bench_parts import Overlap, Script, SlowJudge, least_end_s, measure_overlap
from arenarl.system.seeds import stable_seed
from arenarl.tournament.play import play_tournament
from arenarl.tournament.ranking import Call, Match, Ranking
from arenarl.tournament.topologies import TOPOLOGIES
from arenarl.training.judging import EarlyCalls, IncomingGroup, Judging
from arenarl.trajectory import Query, Trajectory, assistant_message, parse_turn


def ranking_of(*matches):
    """Return a ranking of matches (i, j, round) with two calls each."""
    calls = (Call(0, 1, (1.0, 0.0)), Call(1, 0, (0.0, 1.0)))
    return Ranking([], [], [Match(i, j, round_number, calls) for i, j, round_number in matches])


SEEDED = ranking_of((0, 1, 0), (0, 2, 0), (1, 2, 1))
ALL_PAIRS = ranking_of((0, 1, 0), (0, 2, 0), (1, 2, 0))
FINALS = ranking_of((0, 1, 0), (2, 3, 0), (0, 2, 1))


@pytest.mark.parametrize(("topology", "ended", "rankings", "slots", "delay_s", "end"), [
    ("seeded_single_elimination", [[1, 2, 7]], [SEEDED], 9, 3, 7 + 3 + 3),
    ("anchor", [[1, 2, 7]], [ranking_of((0, 1, 0))], 9, 3, 2 + 3),  # a sure match needs only its two trajectories
    ("swiss", [[1, 2, 7]], [ranking_of((0, 1, 0))], 9, 3, 7 + 3),  # no match is sure
    # at 5, six calls can start and four more later: ten calls in four slots take three rounds
    ("round_robin", [[5, 5, 5], [0, 0, 6]], [ALL_PAIRS] * 2, 4, 1, 5 + 3),
    ("round_robin", [[0, 0, 0]] * 2, [ALL_PAIRS] * 2, 4, 1, 3),
    # six calls fit into three slots in 2 s, but the final's two calls wait for the four of the semi-finals
    ("single_elimination", [[0] * 4], [FINALS], 3, 1, 2 + 1),
    ("single_elimination", [[0] * 4], [FINALS], 4, 1, 1 + 1),
])  # fmt: skip
def test_the_least_end_worked_by_hand(topology, ended, rankings, slots, delay_s, end):
    assert least_end_s(ended, rankings, topology, slots, delay_s) == end
    assert bench_parts.chains_after(FINALS.matches) == [1, 1, 0]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_no_tournament_ends_before_the_least_time_and_without_a_limit_it_ends_just_then(topology):
    for seed in range(10):
        rng = Random(seed)
        ended = [[rng.choice([0.0, 1.0, 2.5, 6.0]) for _ in range(7)] for _ in range(3)]
        for slots in (2, 1000):
            limit = asyncio.Semaphore(slots)

            def judge_of(group, limit=limit, seed=seed):
                async def compare(i, j):
                    async with limit:
                        await asyncio.sleep(1)
                    rng = Random(f"{seed} {group} {i} {j}")
                    return rng.random(), rng.random()

                return compare

            async def play(group, ended_G, judge_of=judge_of):
                early = EarlyCalls(TOPOLOGIES[topology].surely_meets, judge_of(group), True, None)

                async def enter(row):
                    await asyncio.sleep(ended_G[row])
                    early.enter(row, row)

                await asyncio.gather(*map(enter, range(7)))
                return await play_tournament(topology, 7, early.compare, seed=group)

            async def play_all(ended=ended, play=play):
                return await asyncio.gather(*(play(group, ended_G) for group, ended_G in enumerate(ended)))

            rankings, seconds = run_on_virtual_clock(play_all())
            least = least_end_s(ended, rankings, topology, slots, 1.0)
            assert seconds >= least - 1e-9 and (slots == 2 or seconds == pytest.approx(least))


def overlap_of(ended_G, ready):
    """Return the overlap of a group of `SEEDED`, whose outcomes were requested at 10."""
    group = IncomingGroup(Query("0", "travel", "Search", "en", "0"), len(ended_G))
    group.ended_G = ended_G

    async def judge(group):
        return SimpleNamespace(ranking=SEEDED)

    judging = Judging([group], judge)
    return measure_overlap(judging, "seeded_single_elimination", 9, 3.0, requested=10.0, ready=ready)


def test_shares_of_a_step_worked_by_hand():
    """From 10 on, all judging takes 3 + 3 s. The last trajectory ended at 9, so 9 + 6 is the least end."""
    overlap = overlap_of([1.0, 2.0, 9.0], ready=15.5)
    assert overlap == Overlap(calls=6, generation_s=9.0, total_s=6.0, least_wait_s=5.0, wait_s=5.5)
    assert overlap.possible == pytest.approx(1 / 6) and overlap.share == pytest.approx(0.5)
    everything = Overlap(8, 30.0, total_s=6.0, least_wait_s=0.0, wait_s=0.6)
    assert everything.possible == 1 and everything.share == pytest.approx(0.9)
    nothing = overlap_of([10.0] * 3, ready=16.5)
    assert nothing.possible == 0 and nothing.share is None


def test_the_slow_judge_limits_calls_from_every_event_loop_and_scores_by_what_it_is_shown():
    query = Query("q", "travel", "Search", "en", "Find a cafe.")
    pair = [Trajectory("q", [{"role": "assistant", "content": text}], "answer") for text in "ab"]
    expected = bench_parts.noisy_scores("q", [stable_seed(trajectory.messages) for trajectory in pair])
    judge, start = SlowJudge(0.05, 2), time.perf_counter()

    async def compare_five_times():
        return await asyncio.gather(*(judge.compare(query, *pair) for _ in range(5)))

    verdicts = asyncio.run(compare_five_times()) + asyncio.run(compare_five_times())
    assert all(math.dist(verdict.totals, expected) < 1e-9 for verdict in verdicts) and len(verdicts) == 10
    assert time.perf_counter() - start >= 2 * 3 * 0.05  # five calls in two slots take three rounds


def test_a_script_keeps_a_turns_length_and_makes_it_a_tool_call_or_an_answer(tokenizer):
    async def generate(request):
        return GeneratedTurn([(request.seed * 31 + k) % len(tokenizer) for k in range(70)])  # includes control tokens

    script = Script(tokenizer, generate, turns=3)

    def turns_after(prompt):
        return [asyncio.run(script(TurnRequest(prompt, 70, 1.0, seed))).token_ids for seed in range(40)]

    def parsed(turns):
        return [parse_turn(assistant_message(tokenizer.decode(turn[:-1]))) for turn in turns]

    first, last = turns_after([5, *script.header]), turns_after([5, *script.header] * 3)
    assert {len(turn) for turn in first} == {70} and {turn[-1] for turn in first} == {tokenizer.eos_token_id}
    assert len({turn.thought for turn in parsed(first)}) == 40
    calls = [turn for turn in parsed(first) if turn.answer is None]
    assert 10 < len(calls) < 38 and {turn.tool_calls[0].name for turn in calls} == {"universal_search"}
    assert all(turn.answer for turn in parsed(last))


def test_a_policy_of_the_first_layers_never_ends_a_turn(taught, tmp_path):
    config = Config(environment=EnvironmentConfig(results="compact"))
    folder, parameters = bench_parts.build_policy(config, "tiny", [one.query for one in taught[:8]], tmp_path, layers=1)
    model, tokenizer = load_model(folder, "float32"), load_tokenizer(folder)
    assert model.config.num_hidden_layers == len(model.model.layers) == 1 < config.policy.scratch.num_layers
    assert model.num_parameters() == parameters
    prompt = tokenizer.encode("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")  # has the end of a turn
    generator = TransformersGenerator(model, tokenizer, 4)
    for seed in range(4):
        turn = asyncio.run(generator.generate(TurnRequest(prompt, 200, 1.0, seed))).token_ids
        assert len(turn) == 200 and tokenizer.eos_token_id not in turn
