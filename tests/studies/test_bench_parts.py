"""The parts of the benches: a script written over turns, a slow judge's lifetime and limits, hidden judging by hand."""

import asyncio
import math
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from aiohttp import ClientSession
from virtual_clock import run_on_virtual_clock

from arenarl.config.schema import Config, EnvironmentConfig
from arenarl.rollout.generation import GeneratedTurn, TransformersGenerator, TurnRequest
from arenarl.rollout.policy import load_model, load_tokenizer
from arenarl.studies.bench_parts import (
    HTTPJudge,
    Overlap,
    Script,
    build_policy,
    chains_after,
    delayed_judge,
    least_end_s,
    measure_overlap,
    noisy_scores,
)
from arenarl.system.seeds import stable_seed
from arenarl.tournament.play import play_tournament
from arenarl.tournament.ranking import Call, Match, Ranking
from arenarl.tournament.topologies import TOPOLOGIES
from arenarl.training.judging import EarlyCalls, IncomingGroup, Judging
from arenarl.trajectory import Query, Trajectory, assistant_message, parse_turn


def ranking_of(*matches):
    """A ranking of matches (i, j, round) of two calls each."""
    calls = (Call(0, 1, (1.0, 0.0)), Call(1, 0, (0.0, 1.0)))
    return Ranking([], [], [Match(i, j, waited, calls) for i, j, waited in matches])


SEEDED = ranking_of((0, 1, 0), (0, 2, 0), (1, 2, 1))


def test_a_sure_match_starts_with_its_two_trajectories_and_the_bracket_with_the_group():
    ended = [[1.0, 2.0, 7.0]]
    assert least_end_s(ended, [SEEDED], "seeded_single_elimination", concurrency=9, delay_s=3.0) == 7 + 3 + 3
    assert least_end_s(ended, [ranking_of((0, 1, 0))], "anchor", concurrency=9, delay_s=3.0) == 2 + 3
    # nobody is sure to meet anybody
    assert least_end_s(ended, [ranking_of((0, 1, 0))], "swiss", concurrency=9, delay_s=3.0) == 7 + 3


def test_what_starts_late_needs_its_slots_from_then_on():
    """At 5, six calls can start and four more later: ten in four slots take three rounds."""
    ended = [[5.0, 5.0, 5.0], [0.0, 0.0, 6.0]]
    rankings = [ranking_of((0, 1, 0), (0, 2, 0), (1, 2, 0)), ranking_of((0, 1, 0), (0, 2, 0), (1, 2, 0))]
    assert least_end_s(ended, rankings, "round_robin", concurrency=4, delay_s=1.0) == 5 + 3
    assert least_end_s([[0.0] * 3] * 2, rankings, "round_robin", concurrency=4, delay_s=1.0) == 3


def test_a_final_cannot_fill_the_slots():
    """Six calls fit into three slots in 2 s, and the chain is 2 long.
    But two semi-finals are four calls, and the final comes after."""
    finals = ranking_of((0, 1, 0), (2, 3, 0), (0, 2, 1))
    assert chains_after(finals.matches) == [1, 1, 0]
    assert least_end_s([[0.0] * 4], [finals], "single_elimination", concurrency=3, delay_s=1.0) == 2 + 1
    assert least_end_s([[0.0] * 4], [finals], "single_elimination", concurrency=4, delay_s=1.0) == 1 + 1


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_no_tournament_of_ours_ends_before_the_least_time(topology):
    """On a virtual clock, with trajectories that end at random times; without a limit a group ends just then."""
    for seed in range(10):
        rng = Random(seed)
        ended = [[rng.choice([0.0, 1.0, 2.5, 6.0]) for _ in range(7)] for _ in range(3)]
        for slots in (2, 1000):
            limit = asyncio.Semaphore(slots)

            def judge_of(group, limit=limit, seed=seed):
                async def ask(i, j):
                    async with limit:
                        await asyncio.sleep(1)
                    lot = Random(f"{seed} {group} {i} {j}")
                    return lot.random(), lot.random()

                return ask

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
            assert seconds >= least - 1e-9
            if slots == 1000:
                assert seconds == pytest.approx(least)


class Outcome:
    def __init__(self, ranking):
        self.ranking = ranking


def judging_of(ended, rankings):
    async def judge(group):
        return Outcome(rankings[groups.index(group)])

    groups = [
        IncomingGroup(Query(str(k), "travel", "Search", "en", str(k)), len(ended_G)) for k, ended_G in enumerate(ended)
    ]
    for group, ended_G in zip(groups, ended, strict=True):
        group.ended_G = ended_G
    return Judging(groups, judge)


def test_shares_of_a_step_by_hand():
    """Asked for at 10: all of it would take 3 + 3 s from then on;
    the last trajectory ended at 9, so 9 + 6 is the least; answered at 15.5."""
    overlap = measure_overlap(
        judging_of([[1.0, 2.0, 9.0]], [SEEDED]), "seeded_single_elimination", 9, 3.0, asked=10.0, answered=15.5
    )
    assert overlap == Overlap(calls=6, generation_s=9.0, total_s=6.0, least_wait_s=5.0, wait_s=5.5)
    assert overlap.possible == pytest.approx(1 / 6) and overlap.share == pytest.approx(0.5)


def test_where_all_can_be_hidden_and_where_nothing_can():
    assert Overlap(8, 30.0, total_s=6.0, least_wait_s=0.0, wait_s=0.6).possible == 1
    assert Overlap(8, 30.0, total_s=6.0, least_wait_s=0.0, wait_s=0.6).share == pytest.approx(0.9)
    nothing = measure_overlap(
        judging_of([[10.0] * 3], [SEEDED]), "seeded_single_elimination", 9, 3.0, asked=10.0, answered=16.5
    )
    assert nothing.possible == 0 and nothing.share is None


def test_the_http_judge_serves_every_steps_loop_and_scores_by_what_is_shown():
    query = Query("q", "travel", "Search", "en", "Find a cafe.")
    pair = [Trajectory("q", [{"role": "assistant", "content": text}], "answer") for text in "ab"]
    expected = noisy_scores("q", [stable_seed(one.messages) for one in pair])
    with delayed_judge(0.01, 2) as url, HTTPJudge(url, 2) as judge:

        async def ask_often():
            # the server refuses a third at once
            return await asyncio.gather(*(judge.compare(query, *pair) for _ in range(5)))

        verdicts = asyncio.run(ask_often()) + asyncio.run(ask_often())
    assert all(math.dist(verdict.totals, expected) < 1e-9 for verdict in verdicts) and len(verdicts) == 10


def test_the_judge_admits_no_more_calls_than_it_was_set_to():
    async def first_status(url):
        async with ClientSession(url) as session:
            calls = [asyncio.create_task(session.post("/judge", json={"group": 0, "shown": [0, 1]})) for _ in range(2)]
            done, under_way = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            under_way.pop().cancel()
            return done.pop().result().status

    with delayed_judge(100.0, 1) as url:
        assert asyncio.run(first_status(url)) == 429


PARENT = """
import time
from arenarl.studies.bench_parts import delayed_judge
with delayed_judge(100.0, 1) as url:
    print(url, flush=True)
    time.sleep(1000)
"""


def test_the_judge_ends_when_its_parent_is_killed():
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with subprocess.Popen([sys.executable, "-c", PARENT], env=environment, stdout=subprocess.PIPE, text=True) as parent:
        port = int(parent.stdout.readline().rsplit(":")[-1])
        parent.kill()
    deadline = time.monotonic() + 120
    while socket.socket().connect_ex(("127.0.0.1", port)) == 0:
        assert time.monotonic() < deadline, "the judge outlives its parent"
        time.sleep(0.05)


def test_a_script_keeps_a_turns_length_and_makes_it_a_tool_call_or_an_answer(tokenizer):
    async def generate(request):
        return GeneratedTurn([(request.seed * 31 + k) % len(tokenizer) for k in range(70)])  # control tokens among them

    script = Script(tokenizer, generate, turns=3)
    prompt = [5, *script.header]
    turns = [asyncio.run(script(TurnRequest(prompt, 70, 1.0, seed))).token_ids for seed in range(40)]
    read = [parse_turn(assistant_message(tokenizer.decode(turn[:-1]))) for turn in turns]
    assert {len(turn) for turn in turns} == {70} and {turn[-1] for turn in turns} == {tokenizer.eos_token_id}
    assert len({turn.thought for turn in read}) == 40
    assert 10 < sum(turn.answer is None and turn.tool_calls[0].name == "universal_search" for turn in read) < 38
    assert all(turn.answer or turn.tool_calls for turn in read)
    last = [asyncio.run(script(TurnRequest(prompt * 3, 70, 1.0, seed))).token_ids for seed in range(40)]
    assert all(parse_turn(assistant_message(tokenizer.decode(turn[:-1]))).answer for turn in last)


def test_a_policy_of_the_first_layers_never_ends_a_turn(taught, tmp_path):
    config = Config(environment=EnvironmentConfig(results="compact"))
    folder, parameters = build_policy(config, "tiny", [one.query for one in taught[:8]], tmp_path, layers=1)
    model, tokenizer = load_model(folder, "float32"), load_tokenizer(folder)
    assert model.config.num_hidden_layers == len(model.model.layers) == 1 < config.policy.scratch.num_layers
    assert model.num_parameters() == parameters
    # the end of a turn stands in it
    prompt = tokenizer.encode("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
    turns = [
        asyncio.run(TransformersGenerator(model, tokenizer, 4).generate(TurnRequest(prompt, 200, 1.0, seed))).token_ids
        for seed in range(4)
    ]
    assert all(len(turn) == 200 and tokenizer.eos_token_id not in turn for turn in turns)
