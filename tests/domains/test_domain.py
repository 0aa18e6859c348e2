"""Domains: ours have all members, a domain with only a rubric has none, and no metric is invented without a truth."""

import inspect
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from parts import domain_of, examiner_of, trainer_judge_of, training_queries_of

from arenarl.config.schema import Config, DataConfig, EnvironmentConfig
from arenarl.domains.domain import DOMAINS, Domain, Truth, median_of
from arenarl.domains.rubrics import RUBRICS
from arenarl.evaluation.evaluation import Case, baseline_cases, summarize
from arenarl.judges.judge import rubric_of
from arenarl.report.summary import columns_of
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, Trajectory, write_jsonl


def query(name, subtask="", domain="writing"):
    return Query(name, domain, subtask, "en", f"Write about {name}.")


def written(name, text="a text"):
    return Trajectory(name, [{"role": "assistant", "content": f"<answer>\n{text}\n</answer>"}], "answer")


def config_of(folder, domain="parts:Poems", **keys):
    config = Config(environment=EnvironmentConfig(domain=domain))
    config.data.folder, config.data.language, config.rl.groups = str(folder), "en", 2
    for key, value in keys.items():
        setattr(config.rl, key, value)
    return config


@pytest.mark.parametrize("name", DOMAINS)
def test_our_domains_have_a_name_and_every_member(name):
    domain = domain_of(config_of("", name))
    assert domain.name == name and set(domain.held_out) < set(domain.subtasks)
    assert domain.splits is not None
    assert (None in (domain.examine, domain.solve)) == (name == "agentgym")  # only its servers know the truth
    # a change of the domain's own module makes the data outdated
    assert Path(inspect.getfile(type(domain))) in {source.resolve() for source in domain.sources}
    assert all(source.is_file() for source in domain.sources)


def test_a_rubric_alone_makes_a_domain_without_a_truth_and_a_name_without_one_is_refused(tmp_path, monkeypatch):
    shutil.copy(RUBRICS / "writing_en.yaml", tmp_path / "poems_en.yaml")
    monkeypatch.setattr("arenarl.domains.rubrics.RUBRICS", tmp_path)
    assert domain_of(config_of("", "poems")).name == "poems" and examiner_of(config_of("", "poems")) is None
    with pytest.raises(UserError, match="writing has no examine, which the embedded judge scores by"):
        trainer_judge_of(config_of(""))
    with pytest.raises(UserError, match="no rubric for the domain travle"):
        domain_of(config_of("", "travle"))
    with pytest.raises(UserError, match="environment.domain: nowhere:Weather cannot be imported"):
        domain_of(config_of("", "nowhere:Weather"))


def test_queries_are_read_with_their_subtasks_and_those_of_another_domain_refused(tmp_path):
    write_jsonl(tmp_path / "rl_queries.jsonl", [query("a", "poem"), query("b", "essay"), query("c", "poem")])
    assert [query.query_id for query in training_queries_of(config_of(tmp_path))] == ["a", "b", "c"]
    assert [query.query_id for query in training_queries_of(config_of(tmp_path, subtasks=["poem"]))] == ["a", "c"]
    with pytest.raises(UserError, match="has no query of novel; choose from poem, essay"):
        training_queries_of(config_of(tmp_path, subtasks=["novel"]))
    for name in ("rl_queries", "test_queries"):
        write_jsonl(tmp_path / f"{name}.jsonl", [query("a"), query("b", domain="travel")])
    for read_split in (training_queries_of, lambda config: domain_of(config).read_test_set()):
        with pytest.raises(UserError, match="query b is of the domain travel, but environment.domain is writing"):
            read_split(config_of(tmp_path))


class Half(Truth):
    def dimensions(self):
        return dict.fromkeys(rubric_of(query("a")).names, 5.0)

    def figures(self):
        return {"rhymes": 100.0}


def test_an_invalid_trajectory_counts_0_everywhere_and_a_column_counts_only_queries_it_applies_to():
    """One of two poems is invalid, and rhymes do not apply to the essay: 50 %."""
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
    assert "dimensions" not in cases[1].to_record()["findings"]
    assert cases[0].to_record()["findings"]["figures"] == {"rhymes": 100.0}


def test_without_a_truth_figures_and_records_have_none_of_its_columns():
    cases = baseline_cases([query("a")], {"a": written("a")}, None)
    cases[0].outcomes = np.ones((1, 4))
    summary = summarize(cases, 0, 0)
    assert not {"quality", "quality_valid"} & set(summary)
    assert set(summary["by_dimension"]["answer_style"]) == {"win_rate", "win_rate_valid"}
    assert cases[0].to_record()["findings"] == {}


def test_the_median_is_the_first_of_equals_and_few_trajectories_have_full_skill():
    qualities = {(5, 1, 3, 2, 4): "c", (1, 1, 1, 1, 1): "c", (0, 9, 9, 9, 0): "b"}
    assert [median_of("abcde", quality) for quality in qualities] == list(qualities.values())
    own = Domain(EnvironmentConfig(), DataConfig(teacher_skill=0.1, careful_share=0.25))
    own.solve, own.examine = lambda *how: SimpleNamespace(to_record=lambda: how[-1]), Truth
    skills = dict(own.make_splits(None, iter, [], [], range(400)))["sft"]
    assert set(skills) == {0.1, 1.0} and 70 < skills.count(1.0) < 130
