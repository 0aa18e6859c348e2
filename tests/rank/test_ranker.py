"""Ranking from Python: own judges, every topology, missing verdicts, errors of our own code."""

import asyncio
import json
import subprocess
import sys
from dataclasses import fields
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from number_judge import Number

from arenarl.config.schema import JudgeConfig, NoiseConfig
from arenarl.llm.client import RunStopped
from arenarl.plan.estimate import CountingClient
from arenarl.rank import Ranker, rank_group, rank_groups
from arenarl.run.settings import CALL_KEYS
from arenarl.system.errors import UserError
from arenarl.tournament.topologies import ALL_TOPOLOGIES

EXACT = ("seeded_single_elimination", "anchor", "round_robin")  # a perfect judge gives the true order


def rank(candidates, **options):
    return asyncio.run(rank_group("Name a number.", candidates, Number(), **options))


@settings(max_examples=60)
@given(st.sampled_from(ALL_TOPOLOGIES), st.lists(st.integers(0, 10), min_size=1, max_size=9), st.booleans())
def test_ranks_follow_the_judge_and_identical_candidates_share_them(topology, numbers, is_chat):
    candidates = [[{"role": "assistant", "content": str(number)}] if is_chat else str(number) for number in numbers]
    ranked = rank([*candidates, " "], topology=topology)
    assert len(ranked.ranks) == len(ranked.qualities) == len(numbers) + 1
    assert ranked.ranks[-1] == len(numbers) and ranked.qualities[-1] is None or topology == "group_stage"
    for number, one in zip(numbers, ranked.ranks, strict=False):
        for other_number, other in zip(numbers, ranked.ranks, strict=False):
            assert number != other_number or one == other
            assert topology not in EXACT or number <= other_number or one < other
    if len(set(numbers)) > 1 and topology in EXACT:
        assert numbers[ranked.best] == max(numbers)


def test_many_groups_are_ranked_at_once_and_a_candidate_without_verdicts_has_no_rank():
    class Slow(Number):
        running = most = 0

        async def compare(self, *arguments, **options):
            Slow.running += 1
            Slow.most = max(Slow.most, Slow.running)
            await asyncio.sleep(0.001)
            Slow.running -= 1
            return await super().compare(*arguments, **options)

    groups = [(f"prompt {number}", ["1", "2", "3"]) for number in range(20)]
    ranked = asyncio.run(rank_groups(groups, Slow(), concurrency=7))
    assert all(group.ranks == [2.0, 1.0, 0.0] for group in ranked) and Slow.most == 7
    ranked = asyncio.run(rank_group("?", ["3", "9", "7"], Number(silent="9"), topology="round_robin"))
    assert ranked.ranks == [1.0, None, 0.0] and ranked.qualities[1] is None and ranked.best == 2
    assert ranked.calls == 6 and ranked.failed_calls == 4


def test_a_judge_that_fails_too_often_stops_the_ranking_and_an_error_of_our_own_code_is_raised(monkeypatch):
    class Down(Number):
        async def compare(self, *arguments, **options):
            raise ValueError("the database is down")

    with pytest.raises(RunStopped, match=r"of the last \d+ judge calls failed, above judge.max_failure_share=0.2"):
        asyncio.run(rank_groups([(f"prompt {number}", ["1", "2", "3"]) for number in range(20)], Down()))

    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("arenarl.rank.ranker.scores_and_detail", broken)
    with pytest.raises(ZeroDivisionError):
        rank(["1", "2"])


@pytest.mark.parametrize(("options", "words"), [
    ({"topology": "swis"}, "did you mean 'swiss'"),
    ({"matches": 3}, "seeded_single_elimination has no parameter matches"),
    ({"topology": "group_stage", "winners": 9}, "must be from 1 to group-1"),
    ({"ranking": "scores", "topology": "group_stage"}, "ranking of group_stage"),
    ({"concurrency": 0}, "judge.concurrency=0"),
    ({"rubric": "kind"}, "leave rubric out"),
    ({"bidirectional": "no"}, "bidirectional='no': must be true or false"),
    ({"topology": "group_stage", "bidirectional": False}, "bidirectional=false: group_stage shows each group once"),
    ({"timeout_s": "soon"}, "timeout_s='soon': must be a finite number"),
    ({"timeout_s": -3}, "timeout_s=-3: must be above 0"),
])  # fmt: skip
def test_invalid_arguments_are_refused_in_one_line(options, words):
    with pytest.raises(UserError) as refused:
        Ranker(Number(), **options)
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("topology", ALL_TOPOLOGIES)
@pytest.mark.parametrize("name", ["self", "name", "size", "group_size", "members", "choose", "slots", "failures"])
def test_a_name_of_our_own_arguments_is_no_parameter_of_a_topology(topology, name):
    """`arenarl rank --set` passes any name."""
    with pytest.raises(UserError, match=f"{topology} has no parameter {name}; it has: "):
        Ranker(Number(), topology=topology, **{name: 3})


def test_an_own_topology_that_cannot_rank_is_refused_in_one_line(tmp_path, monkeypatch):
    lines = ["from arenarl.tournament.schedules import Anchor, Pairing", ""]
    bodies = {"NoStandings": "standings = None", "NoMatch": "ready = lambda self, results: []",
              "Self": "ready = lambda self, results: [Pairing(0, 0, 0)]", "Sound": "pass"}  # fmt: skip
    lines += [f"class {name}(Anchor): {body}" for name, body in bodies.items()]
    (tmp_path / "ranker_topologies.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    for name in list(bodies)[:3]:
        with pytest.raises(UserError, match=f"rank: ranker_topologies:{name} cannot rank . entrants: "):
            Ranker(Number(), topology=f"ranker_topologies:{name}")
    assert asyncio.run(rank_group("?", ["1", "2"], Number(), topology="ranker_topologies:Sound")).ranks == [1.0, 0.0]


def test_an_own_topology_is_tested_with_its_parameters(tmp_path, monkeypatch):
    source = """
        from dataclasses import dataclass
        from arenarl.tournament.schedules import Anchor

        @dataclass(frozen=True)
        class Rounds(Anchor):
            rounds: int = 0

            def ready(self, results):
                return super().ready(results) if self.rounds else []
    """
    (tmp_path / "ranker_rounds.py").write_text(dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    own = {"topology": "ranker_rounds:Rounds"}
    assert asyncio.run(rank_group("?", ["1", "2"], Number(), **own, rounds=1)).ranks == [1.0, 0.0]
    with pytest.raises(UserError, match="cannot rank 2 entrants: ValueError: it plays no match"):
        Ranker(Number(), **own)


def test_a_budget_that_is_none_for_a_small_group_plays_one_match():
    for budget in ("n-2", "n/2-1", "n/3"):
        assert asyncio.run(rank_group("?", ["1", "2"], Number(), topology="balanced", matches=budget)).calls == 2


def test_every_key_of_a_judge_that_changes_verdicts_changes_the_settings(tmp_path):
    """Otherwise `arenarl rank` would mix ranks of two prompts in a file."""
    judge = {"name": "llm", "model": "m"}
    others = {"model": "n", "base_url": "http://x/v1", "temperature": 1.0, "max_reply_tokens": 9}
    others |= {"reply_format": "none", "extra_body": {"seed": 1}, "max_result_chars": 9, "max_text_chars": 9}
    others |= {"process_aware": False, "show_tool_results": False, "explain": True, "name_turns": True}
    keys = {field.name for field in fields(JudgeConfig)} - {field.name for field in fields(NoiseConfig)} - CALL_KEYS
    assert keys - {"name", "query_rubrics", "token_limit_name"} == others.keys()  # rank takes no rubrics by query

    def settings(**changes):
        (tmp_path / "judge.yaml").write_text(json.dumps(judge | changes))
        return json.dumps(Ranker(tmp_path / "judge.yaml", client=CountingClient()).settings)

    assert len({settings(), *(settings(**{key: value}) for key, value in others.items())}) == 1 + len(others)


def test_a_file_of_criteria_that_is_not_yaml_is_refused_and_a_long_rubric_in_words_is_none(tmp_path, monkeypatch):
    """Its name would be the criteria."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "criteria.txt").write_text("true and short")
    with pytest.raises(UserError, match="rubric=criteria.txt is a file, but not a YAML.*or pass its words"):
        Ranker("vllm", rubric="criteria.txt")
    assert Ranker("vllm", rubric="true " * 2000).judge.rubric(None).names == ("quality",)


@pytest.mark.parametrize(("prompt", "candidates", "words"), [
    ("?", [], "at least one entry"), ("?", "ab", "must be a list"), ("?", [1], "candidate 0 must be a text"),
    ([{"content": "x"}], ["a"], "the prompt must be"),
    ("?", [[{"role": "assistant", "content": {"text": "x"}}]], "candidate 0 must be .*content is neither a text nor a"),
])  # fmt: skip
def test_prompts_and_candidates_of_another_form_are_refused(prompt, candidates, words):
    with pytest.raises(ValueError, match=words):
        asyncio.run(rank_group(prompt, candidates, Number()))


def test_ranking_needs_no_training_stack(tmp_path):
    heavy = ["torch", "transformers", "trl", "datasets", "scipy", "matplotlib", "networkx", "wandb", "statsmodels"]
    code = f"""
import sys
for name in {heavy}:
    sys.modules[name] = None  # importing it fails
import arenarl.rank.__main__, arenarl.rank.page
from arenarl import tournament_reward
tournament_reward(judge="vllm", num_generations=4)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
