"""Pass rates: measured once, resumed after a kill, and measured again for another policy."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from parts import training_queries_of
from scripts import BEING_WRITTEN, locked_by_another

from arenarl.config.load import load_config
from arenarl.config.schema import DifficultyConfig
from arenarl.rollout.engine import RolloutEngine
from arenarl.run import stage
from arenarl.system.errors import UserError
from arenarl.training import difficulty
from arenarl.training.queries import of_right_difficulty, refuse_other_pass_rates
from arenarl.training.sft_stop import StopAtValid
from arenarl.trajectory import Query, Trajectory, read_jsonl, write_jsonl

ROOT = Path(__file__).resolve().parents[2]
RESEARCH = ROOT / "configs/research/quickstart.yaml"
KNOWN = {"answer": "x", "answer_aliases": [], "entities": []}


@pytest.fixture
def config(policy_path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    queries = [Query(f"q{index}", "research", "synthetic_qa", "en", f"Question {index}?", KNOWN) for index in range(6)]
    queries.append(Query("o", "research", "Report", "en", "Write.", {"facts": []}))
    write_jsonl(tmp_path / "data" / "rl_queries.jsonl", queries)
    return load_config(RESEARCH, overrides_of(policy_path))


def overrides_of(policy_path):
    keys = "data.folder=data environment.search.corpus_size=100 rollout.max_tokens=64 rl.groups=2"
    return [f"rl.init={policy_path}", *keys.split()]


@pytest.fixture
def rolled_out(monkeypatch):
    """Replace rollouts: the first i samples answer question i correctly. Returns the list of question ids."""
    query_ids = []

    def roll_out(self, attempts, *tick):
        samples = Counter()
        for query_id in [attempt.query.query_id for attempt in attempts]:
            text = "x" if samples[query_id] < int(query_id[1:]) else "y"
            samples[query_id] += 1
            query_ids.append(query_id)
            message = {"role": "assistant", "content": f"<answer>\n{text}\n</answer>"}
            yield Trajectory(query_id, [message], "answer")

    monkeypatch.setattr(RolloutEngine, "roll_out", lambda *arguments: list(roll_out(*arguments)))
    return query_ids


def test_sft_that_stops_early_needs_no_pass_rates_which_are_measured_with_its_policy(config, tokenizer, compact):
    config.rl.difficulty.filter, config.sft.stop_at_valid = True, 0.5
    tried = StopAtValid(config, tokenizer, lambda: compact, print).attempts
    assert {attempt.query.query_id for attempt in tried} == {"q0", "q1", "q2", "q3", "q4", "q5", "o"}


def test_rl_trains_on_queries_that_these_weights_sometimes_answer(config, rolled_out, policy_path, tmp_path, capsys):
    difficulty.measure(config)
    assert len(rolled_out) == 6 * 4
    assert "3 of 6 queries with a known answer are kept; 1 were never answered, 2 always" in capsys.readouterr().out
    config.rl.difficulty.filter = True
    assert [query.query_id for query in training_queries_of(config)] == ["q1", "q2", "q3", "o"]
    refuse_other_pass_rates(config.rl, config.pass_rates, policy_path)
    refuse_other_pass_rates(config.rl, tmp_path / "by_hand" / "pass_rates.jsonl", policy_path)
    with pytest.raises(UserError, match="was measured with other weights than elsewhere has; run python -m"):
        refuse_other_pass_rates(config.rl, config.pass_rates, "elsewhere")
    config.rl.difficulty.filter = False
    refuse_other_pass_rates(config.rl, config.pass_rates, "elsewhere")


def test_an_edit_of_the_users_tools_or_prompts_needs_other_pass_rates(config, policy_path, own_modules, tmp_path):
    prompts = tmp_path / "prompts" / "search_en.yaml"
    prompts.parent.mkdir()
    config.environment.name, config.prompts.folder = "own:Tools", str(prompts.parent)
    settings = []
    for code, text in (("pass", "Be brief."), ("pass", "Be exact."), ("edited = True", "Be exact.")):
        own_modules({"own.py": f"class Tools:\n    {code}\n"})
        prompts.write_text(f"snippet: {text}\n")
        settings.append(difficulty.rate_settings(config, policy_path))
        assert settings[-1] not in settings[:-1]


def test_measuring_resumes_after_a_kill_and_restarts_with_other_settings(config, rolled_out, monkeypatch):
    monkeypatch.setattr(difficulty, "BATCH", 2)
    with locked_by_another(config.pass_rates.parent), pytest.raises(UserError, match=BEING_WRITTEN):
        difficulty.measure(config)  # else its rates, with other settings, could end in the file of this run
    difficulty.measure(config)
    path = config.pass_rates
    whole = path.read_bytes()
    write_jsonl(path, list(read_jsonl(path))[:4])
    (path.parent / "whole.json").unlink()  # written last
    rolled_out.clear()
    difficulty.measure(config)
    assert set(rolled_out) == {"q4", "q5"} and path.read_bytes() == whole
    rolled_out.clear()
    difficulty.measure(config)
    assert not rolled_out
    path.write_bytes(whole.replace(b"0.0", b"0.5", 1))
    with pytest.raises(UserError, match="is damaged: pass_rates.jsonl was changed; restore it, or run python -m"):
        of_right_difficulty([], config.rl.difficulty, path)
    difficulty.measure(config)
    assert len(set(rolled_out)) == 6 and path.read_bytes() == whole
    config.rollout = replace(config.rollout, temperature=0.5)
    difficulty.measure(config)
    assert len(set(rolled_out)) == 6


def test_a_subtask_of_the_domain_without_queries_is_refused(config):
    """Otherwise the run would train on the other subtasks alone."""
    config.rl.subtasks, config.rl.difficulty.filter = ["synthetic_qa", "Report"], False
    assert len(training_queries_of(config)) == 7
    config.rl.subtasks += ["Ideation", "Overview"]
    with pytest.raises(UserError, match="has no query of Ideation, Overview; choose from .*Report"):
        training_queries_of(config)


def test_runs_with_other_queries_keep_each_others_pass_rates(config, rolled_out):
    path = Path("data/rl_queries.jsonl")
    every = list(read_jsonl(path))
    for queries, measured in ((every[:4], range(4)), (every[2:], (4, 5)), (every, ())):
        rolled_out.clear()
        write_jsonl(path, queries)
        difficulty.measure(config)
        assert set(rolled_out) == {f"q{number}" for number in measured}
    assert sorted(record["query_id"] for record in read_jsonl(config.pass_rates)) == [f"q{k}" for k in range(6)]


@pytest.mark.parametrize("change", [{"query": "Another question?"}, {"constraints": KNOWN | {"answer": "z"}}])
def test_a_query_whose_question_or_answer_has_changed_is_measured_again(config, rolled_out, change):
    difficulty.measure(config)
    config.rl.difficulty.filter = True
    path = Path("data/rl_queries.jsonl")
    write_jsonl(path, [{**record, **(change if record["query_id"] == "q2" else {})} for record in read_jsonl(path)])
    with pytest.raises(UserError, match="lacks 1 of 6 pass rates; run python -m arenarl.training.difficulty"):
        training_queries_of(config)
    rolled_out.clear()
    difficulty.measure(config)
    assert set(rolled_out) == {"q2"}
    assert len(training_queries_of(config)) == 3 + ("query" in change)  # no sample has the new answer
    records = [{key: record[key] for key in ("query_id", "pass_rate")} for record in read_jsonl(config.pass_rates)]
    (config.pass_rates.parent / "whole.json").unlink()
    write_jsonl(config.pass_rates, records)  # as an earlier version wrote them
    assert training_queries_of(config)


@pytest.mark.parametrize(("has_answers", "words"), [
    (False, "no query with a known answer .* leave rl.difficulty.filter out"),
    (True, "more tokens than the [0-9,]+ that the model reads; shorten it"),
])  # fmt: skip
def test_queries_without_an_answer_or_without_room_are_refused(config, rolled_out, monkeypatch, has_answers, words):
    monkeypatch.setattr(difficulty, "BATCH", 2)  # the long query would be in the last batch
    path = Path("data/rl_queries.jsonl")
    *queries, report = read_jsonl(path)
    queries[5]["query"] *= 2000
    others = [report | {"query_id": name, "query": f"Write {name}."} for name in "op"]
    write_jsonl(path, [*queries, report] if has_answers else others)
    with pytest.raises(UserError, match=words):
        difficulty.measure(config)
    assert not rolled_out and not config.pass_rates.exists()


@pytest.mark.parametrize("rate", ['"0.5"', "NaN", "2", "[0.5]", "-1"])
def test_a_pass_rate_that_is_not_a_share_is_refused(rate, tmp_path):
    path = tmp_path / "pass_rates.jsonl"
    path.write_text(f'{{"query_id": "q", "pass_rate": {rate}}}\n')
    with pytest.raises(UserError, match="is not an object with query_id and a pass_rate from 0 to 1"):
        of_right_difficulty([], DifficultyConfig(), path)


def test_another_verifier_or_precision_restarts_and_another_price_does_not(config, rolled_out):
    difficulty.measure(config)
    for change, restarts in (
        (lambda: setattr(config.policy, "dtype", "bfloat16"), True),
        (lambda: setattr(config.judge.verifier, "price_in", 2.0), False),
        (lambda: setattr(config.judge.verifier, "temperature", 0.5), True),
    ):
        rolled_out.clear()
        change()
        difficulty.measure(config)
        assert bool(rolled_out) is restarts


@pytest.mark.slow(seconds=16)
def test_one_and_two_processes_measure_the_same_pass_rates(config, policy_path):
    difficulty.measure(config)
    records = list(read_jsonl(config.pass_rates))
    assert [record["query_id"] for record in records] == [f"q{index}" for index in range(6)]
    assert all(record["pass_rate"] == 0 for record in records)
    by_one_process = config.pass_rates.read_bytes()
    config.pass_rates.unlink()
    stage._LOCKS.clear()  # as the end of this process would
    sets = [word for override in overrides_of(policy_path) for word in ("--set", override)]
    words = "-m arenarl.run.launch --nproc_per_node 2 -m arenarl.training.difficulty --config"
    command = [sys.executable, *words.split(), str(RESEARCH), *sets]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and done.stdout.count("0 of 6 queries") == 1, done.stderr
    assert config.pass_rates.read_bytes() == by_one_process
    assert json.loads((config.pass_rates.parent / "settings.json").read_text())["samples"] == 4
