"""Domains: travel has all parts, a name with a rubric has none,
and a run without a truth trains and evaluates without inventing one."""

import inspect
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from parts import domain_of, examiner_of, trainer_judge_of, training_queries_of
from scripts import ROOT, read, run, run_well

from arenarl.config.schema import Config, DataConfig, EnvironmentConfig
from arenarl.domains.domain import DOMAINS, Truth, median_of, teacher_skills
from arenarl.domains.rubrics import RUBRICS
from arenarl.evaluation.evaluation import Case, baseline_cases, summarize
from arenarl.judges.judge import rubric_of
from arenarl.report.page import write_page
from arenarl.report.summary import columns_of
from arenarl.system.errors import UserError
from arenarl.system.user_input import named
from arenarl.trajectory import Query, Trajectory, write_jsonl

JUDGE = """
from arenarl.domains.domain import Domain
from arenarl.judges.judge import Judge, Verdict
from arenarl.domains.rubrics import domain_rubric

class Poems(Domain):
    name = "writing"

class Longer(Judge):
    def __init__(self, config):
        self.rubric = domain_rubric("writing", "en")

    async def compare(self, query, first, second, repeat=0):
        return Verdict(tuple(dict.fromkeys(self.rubric.names, min(10.0, len(one.answer) / 20)) for one in (first, second)), self.rubric.total)
"""  # noqa: E501


def query(name, subtask="", domain="writing"):
    return Query(name, domain, subtask, "en", f"Write about {name}.")


def written(name, text="a text"):
    return Trajectory(name, [{"role": "assistant", "content": f"<answer>\n{text}\n</answer>"}], "answer")


def config_of(folder, domain="parts:Poems", **keys):
    config = Config(environment=EnvironmentConfig(domain=domain))
    config.data.folder, config.rl.groups = str(folder), 2
    for key, value in keys.items():
        setattr(config.rl, key, value)
    return config


@pytest.mark.parametrize("name", DOMAINS)
def test_a_domain_of_this_project_says_its_name_and_has_all_parts(name):
    domain = domain_of(config_of("", name))
    assert (
        domain.name == name
        and set(domain.held_out) < set(domain.subtasks)
        and all(path.is_file() for path in domain.sources)
    )
    assert None not in (domain.examine, domain.splits, domain.solve)


def test_the_truth_has_the_dimensions_of_the_rubric(taught):
    examine = examiner_of(Config())
    for one in taught[::20]:
        truth = examine(one.query, one.trajectory)
        assert tuple(truth.dimensions()) == rubric_of(one.query).names
        assert set(truth.figures()) == {"groundedness", "constraints_met", "invented_facts"} and set(
            truth.passes()
        ) == {"constraints"}


def test_a_name_with_a_rubric_is_a_domain_without_a_truth_and_one_without_is_none(tmp_path, monkeypatch):
    shutil.copy(RUBRICS / "writing_en.yaml", tmp_path / "poems_en.yaml")
    monkeypatch.setattr("arenarl.domains.rubrics.RUBRICS", tmp_path)
    assert domain_of(config_of("", "poems")).name == "poems" and examiner_of(config_of("", "poems")) is None
    with pytest.raises(UserError, match="no rubric for the domain travle"):
        domain_of(config_of("", "travle"))
    with pytest.raises(UserError, match="environment.domain: nowhere:Weather cannot be imported"):
        domain_of(config_of("", "nowhere:Weather"))


def test_the_embedded_judge_is_refused_where_there_is_no_truth():
    config = config_of("")
    with pytest.raises(UserError, match="writing has no examine, which the embedded judge scores by"):
        trainer_judge_of(config)


def test_subtasks_are_those_that_the_queries_name(tmp_path):
    write_jsonl(tmp_path / "rl_queries.jsonl", [query("a", "poem"), query("b", "essay"), query("c", "poem")])
    assert [one.query_id for one in training_queries_of(config_of(tmp_path))] == ["a", "b", "c"]
    assert [one.query_id for one in training_queries_of(config_of(tmp_path, subtasks=["poem"]))] == ["a", "c"]
    with pytest.raises(UserError, match="unknown novel; known: poem, essay"):
        training_queries_of(config_of(tmp_path, subtasks=["novel"]))


def test_queries_of_another_domain_are_refused(tmp_path):
    for name in ("rl_queries", "test_queries"):
        write_jsonl(tmp_path / f"{name}.jsonl", [query("a"), query("b", domain="travel")])
    for read_split in (training_queries_of, lambda config: domain_of(config).read_test_set()):
        with pytest.raises(UserError, match="query b is of the domain travel, environment.domain of writing"):
            read_split(config_of(tmp_path))


class Half(Truth):
    def dimensions(self):
        return dict.fromkeys(rubric_of(query("a")).names, 5.0)

    def figures(self):
        return {"rhymes": 100.0}


def test_an_invalid_trajectory_has_zero_in_all_that_is_true_of_it_and_a_figure_counts_where_it_applies():
    """Two poems, one of them invalid, and an essay, of which rhymes say nothing: 50 %."""
    silent = type("Silent", (Half,), {"figures": lambda self: {}})()
    cut = Trajectory("b", [], "max_tokens")
    cases = [Case(query("a"), written("a"), Half(), np.ones((1, 4))), Case(query("b"), cut, Half(), -np.ones((1, 4)))]
    cases.append(Case(query("c"), written("c"), silent, np.ones((1, 4))))
    summary = summarize(cases, 0, 0)
    assert summary["rhymes"]["mean"] == 50.0 and summary["quality"]["mean"] == pytest.approx(10 / 3, abs=1e-3)
    assert summary["by_dimension"]["answer_style"]["score"]["mean"] == pytest.approx(10 / 3, abs=1e-3)
    assert columns_of({"": summary}) == {
        "win_rate": "win rate %", "quality": "quality 0-10", "valid_rate": "valid %", "rhymes": "rhymes",
        "tool_calls": "tool calls"
    }  # fmt: skip
    assert "dimensions" not in cases[1].to_record()["findings"] and cases[0].to_record()["findings"]["figures"] == {
        "rhymes": 100.0
    }


def test_without_a_truth_nothing_of_it_is_in_the_figures_and_records():
    cases = baseline_cases([query("a")], {"a": written("a")}, None)
    cases[0].outcomes = np.ones((1, 4))
    summary = summarize(cases, 0, 0)
    assert not {"quality", "quality_valid"} & set(summary) and set(summary["by_dimension"]["answer_style"]) == {
        "win_rate",
        "win_rate_valid",
    }
    assert cases[0].to_record()["findings"] == {}


@pytest.mark.slow(seconds=16)
def test_a_run_without_a_truth_trains_is_evaluated_and_reported(folder, tmp_path):
    """Its policy is the one that learnt to travel: it matters only that it answers."""
    (tmp_path / "my_judge.py").write_text(JUDGE, encoding="utf-8")
    data = tmp_path / "data"
    shutil.copytree(folder / "data", data)
    for name in ("rl_queries", "test_queries"):
        records = [
            json.loads(line) | {"domain": "writing"}
            for line in (data / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        write_jsonl(data / f"{name}.jsonl", records)
    options = {
        "environment__domain": "my_judge:Poems", "judge__train__name": "my_judge:Longer",
        "judge__eval": [{"name": "my_judge:Longer"}], "rl__init": str(folder / "runs" / "tiny" / "sft"),
        "extra_environment": {"PYTHONPATH": f"{ROOT}:{tmp_path}"},
    }  # fmt: skip
    refused = run(tmp_path, "data/prepare.py", **options)
    assert refused.returncode == 2 and "environment.domain=writing has no splits" in refused.stderr
    run_well(tmp_path, "train_rl.py", **options)
    output = run_well(tmp_path, "evaluate.py", **options)
    assert output.splitlines()[-2] == "win rate by the my_judge:Longer judge; [95 % over test queries], one seed"
    summary = read(tmp_path / "results" / "tiny" / "summary.json")
    assert set(columns_of({"": summary["rl"]["sampled"]})) == {"win_rate", "valid_rate", "tool_calls"}
    state = read(next((tmp_path / "runs" / "tiny" / "rl").glob("checkpoint-*/trainer_state.json")))
    assert not [name for entry in state["log_history"] for name in entry if name.startswith("true/")]
    assert "judge/calls_per_group" in state["log_history"][0]
    assert write_page(tmp_path / "runs" / "tiny", tmp_path / "results" / "tiny").stat().st_size > 50_000


@pytest.mark.parametrize("name", DOMAINS)
def test_the_code_that_makes_a_domain_s_data_is_named_so_that_other_data_is_out_of_date(name):
    domain = named(DOMAINS[name], "environment.domain")
    assert Path(inspect.getfile(domain)) in {source.resolve() for source in domain.sources} and all(
        source.is_file() for source in domain.sources
    )


def test_the_median_is_the_first_of_equals_and_few_trajectories_are_wholly_careful():
    assert [median_of("abcde", quality) for quality in ([5, 1, 3, 2, 4], [1, 1, 1, 1, 1], [0, 9, 9, 9, 0])] == [
        "c",
        "c",
        "b",
    ]
    skills = teacher_skills(DataConfig(teacher_skill=0.1, careful_share=0.25), random.Random(0), 400)
    assert set(skills) == {0.1, 1.0} and 70 < skills.count(1.0) < 130
