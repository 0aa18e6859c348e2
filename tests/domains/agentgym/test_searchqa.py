"""SearchQA: questions and a corpus of the user's, answers compared as the benchmark compares them."""

import asyncio
import json
import random
from collections import Counter

import pytest

from arenarl.config.schema import DataConfig, EnvironmentConfig, SearchConfig
from arenarl.domains.agentgym.searchqa import SETS, SearchQADomain, set_of
from arenarl.domains.environments import make_environment
from arenarl.judges.judge import rubric_of
from arenarl.judges.verifier import Verifier
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, Trajectory, assistant_message


@pytest.fixture
def folder(tmp_path):
    """Twelve questions of each data set, also to train on, and the pages that answer them."""
    pages = []
    for name in SETS:
        (tmp_path / name).mkdir()
        for file in ("test", "train"):
            names = [f"{name} {file} {k}" for k in range(12)]
            records = [
                {"question": f"Who built {one}", "golden_answers": [f"The Person-{k}", "x"]}
                for k, one in enumerate(names)
            ]
            (tmp_path / name / f"{file}.jsonl").write_text("\n".join(map(json.dumps, records)))
            pages += [{"title": one, "text": f"{one} was built by person{k} long ago."} for k, one in enumerate(names)]
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "all.jsonl").write_text("\n".join(map(json.dumps, pages)))
    return tmp_path


def domain_of(folder, **data):
    search = SearchConfig(engine="folder", folder=str(folder / "pages"), indexes=str(folder / "indexes"), cache=None)
    sizes = {"test_per_subtask": 3, "rl_size": 10, "sft_size": 4} | data
    environment = EnvironmentConfig(name="research", domain="searchqa", search=search)
    return SearchQADomain(environment, DataConfig(items=str(folder), **sizes))


def test_questions_become_splits_that_share_none_and_the_solver_finds_the_answer(folder):
    domain = domain_of(folder)
    environment = make_environment(domain.environment, "en")
    splits = dict(domain.splits(environment))
    test, rl, sft = splits["test_queries"], splits["rl_queries"], splits["sft"]
    assert Counter(query.subtask for query in test) == dict.fromkeys(domain.subtasks, 3)
    taught = {record["messages"][0]["content"] for record in sft}
    assert (len(rl), len(sft), len({query.query for query in [*test, *rl]} | taught)) == (10, 4, 21 + 10 + 4)
    assert all(query.query.endswith("?") for query in test)
    right, wrong = (domain.solve(test[0], environment, random.Random(0), skill) for skill in (1, 0))
    assert domain.examine(test[0], right.messages).dimensions() == dict.fromkeys(rubric_of(test[0]).names, 10)
    assert domain.examine(test[0], wrong.messages).figures() == {"exact_match": 0, "answer_found": 100}
    assert domain.examine(test[0], []).figures() == {"exact_match": 0, "answer_found": 0}


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [("person7", True), ("A Person-7!", True), ("The Person-7 of old", False), ("", False), ("X", True)],
)
def test_an_answer_is_compared_without_case_punctuation_and_articles_in_figures_and_rewards(folder, answer, is_right):
    domain = domain_of(folder)
    query = domain._questions("nq", ["test.jsonl"])[7]
    messages = [assistant_message(f"<think>\n\n</think>\n\n<answer>\n{answer}\n</answer>")]
    assert domain.examine(query, messages).correct == is_right
    trajectory = Trajectory(query.query_id, messages, "answer")
    assert asyncio.run(Verifier(DataConfig().research.rephraser, None).is_correct(query, trajectory)) == is_right


def write_official(folder, change=lambda ids: ids):
    """A list with the official counts; the files have as many questions as that takes."""
    ids = [f"{name}_{first + k}" for name, (_, count, first) in SETS.items() for k in range(count)]
    for name, (_, count, _) in SETS.items():
        records = [{"question": f"Who built {name} {k}?", "golden_answers": [str(k)]} for k in range(count)]
        (folder / name / "test.jsonl").write_text("\n".join(map(json.dumps, records)))
    (folder / "eval").mkdir(exist_ok=True)
    (folder / "eval" / "searchqa_test.json").write_text(json.dumps([{"item_id": one} for one in change(ids)]))


def test_the_official_list_names_the_test(folder):
    write_official(folder)
    test = domain_of(folder)._test(random.Random(0))
    assert Counter(query.subtask for query in test) == {column: count for column, count, _ in SETS.values()}
    assert test[60].query == "Who built triviaqa 10?" and set_of(3620) == "triviaqa"
    write_official(folder, lambda ids: [*ids[:-1], "bamboogle_51700"])
    with pytest.raises(UserError, match="bamboogle has 50 questions and lacks number 113; take the whole file"):
        domain_of(folder)._test(random.Random(0))


def test_what_is_missing_or_malformed_is_one_line(folder):
    with pytest.raises(UserError, match="SearchQA needs a corpus of yours"):
        list(SearchQADomain(EnvironmentConfig(), DataConfig()).splits(None))
    with pytest.raises(UserError, match="SearchQA needs data.items"):
        list(SearchQADomain(EnvironmentConfig(search=SearchConfig(engine="folder")), DataConfig()).splits(None))
    with pytest.raises(UserError, match="data.rl_size and data.sft_size want 104 questions; .* has 24 to train on"):
        list(domain_of(folder, rl_size=100).splits(None))
    (folder / "popqa" / "test.jsonl").write_text('{"question": "Who?", "golden_answers": []}')
    with pytest.raises(UserError, match="popqa/test.jsonl, record 1 is no question with golden_answers"):
        list(domain_of(folder).splits(None))
    for file in (folder / "nq").iterdir():
        file.unlink()
    with pytest.raises(UserError, match="/nq has none of test.jsonl, dev.jsonl, train.jsonl"):
        list(domain_of(folder).splits(None))


def test_a_query_of_ones_own_needs_no_aliases_and_its_answer_must_be_a_text():
    domain = SearchQADomain(None, None)
    query = Query("q", "searchqa", "NQ", "en", "Where?", {"answer": "Paris"})
    messages = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "<answer>Paris</answer>"}]
    assert domain.has_truth(query) and domain.examine(query, messages).correct
    with pytest.raises(UserError, match="constraints.answer must be a text"):
        domain.has_truth(Query("q", "searchqa", "NQ", "en", "Where?", {"answer": 1990}))
