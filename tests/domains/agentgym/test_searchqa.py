"""SearchQA: the user's questions and corpus, answers compared like the benchmark's."""

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
    """A folder with twelve test and training questions of each data set, and with the pages that answer them."""
    pages = []
    for name in SETS:
        (tmp_path / name).mkdir()
        for file in ("test", "train"):
            records = []
            for number in range(12):
                house = f"{name} {file} {number}"
                records.append({"question": f"Who built {house}", "golden_answers": [f"The Person-{number}", "x"]})
                pages.append({"title": house, "text": f"{house} was built by person{number} long ago."})
            (tmp_path / name / f"{file}.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "all.jsonl").write_text("\n".join(map(json.dumps, pages)))
    return tmp_path


def domain_of(folder, **data):
    search = SearchConfig(engine="folder", folder=str(folder / "pages"), indexes=str(folder / "indexes"), cache=None)
    sizes = {"test_per_subtask": 3, "rl_size": 10, "sft_size": 4} | data
    environment = EnvironmentConfig(name="research", domain="searchqa", search=search)
    return SearchQADomain(environment, DataConfig(items=str(folder), **sizes))


def test_splits_share_no_question_and_the_solver_finds_the_answer(folder):
    domain = domain_of(folder)
    environment = make_environment(domain.environment, "en")
    splits = dict(domain.splits(environment))
    test, rl, sft = splits["test_queries"], splits["rl_queries"], splits["sft"]
    assert Counter(query.subtask for query in test) == dict.fromkeys(domain.subtasks, 3)
    questions = {query.query for query in [*test, *rl]} | {record["messages"][0]["content"] for record in sft}
    assert (len(rl), len(sft), len(questions)) == (10, 4, 21 + 10 + 4)
    assert all(query.query.endswith("?") and query.constraints["answer_aliases"] == ["x"] for query in test)
    right, wrong = (domain.solve(test[0], environment, random.Random(0), skill) for skill in (1, 0))
    assert domain.examine(test[0], right.messages).dimensions() == dict.fromkeys(rubric_of(test[0]).names, 10)
    assert domain.examine(test[0], wrong.messages).figures() == {"exact_match": 0, "answer_found": 100}
    page = json.dumps({"text": f"one\n{test[0].constraints['answer']}\ntwo"})  # as the full form shows it
    messages = [message | {"content": page} if message["role"] == "tool" else message for message in wrong.messages]
    assert domain.examine(test[0], messages).figures() == {"exact_match": 0, "answer_found": 100}
    assert domain.examine(test[0], []).figures() == {"exact_match": 0, "answer_found": 0}


@pytest.mark.parametrize(
    ("answer", "known", "is_right"),
    [("person7", {}, True), ("A Person-7!", {}, True), ("The Person-7 of old", {}, False), ("", {}, False),
     ("X", {"answer_aliases": ["x"]}, True)],
)  # fmt: skip
def test_figures_and_rewards_ignore_case_punctuation_and_articles_of_an_answer(answer, known, is_right):
    domain = SearchQADomain(None, None)
    query = Query("q", "searchqa", "NQ", "en", "Who?", {"answer": "The Person-7", "comparison": "exact_match"} | known)
    messages = [assistant_message(f"<think>\n\n</think>\n\n<answer>\n{answer}\n</answer>")]
    assert domain.has_truth(query) and domain.examine(query, messages).correct == is_right
    with pytest.raises(UserError, match="constraints.answer must be a text"):
        domain.has_truth(Query("q", "searchqa", "NQ", "en", "Where?", {"answer": 1990}))
    trajectory = Trajectory(query.query_id, messages, "answer")
    assert asyncio.run(Verifier(DataConfig().research.rephraser, None).is_correct(query, trajectory)) == is_right


def write_official(folder, change=lambda ids: ids):
    """Write a list with the official counts, and files with that many questions."""
    ids = [f"{name}_{first + k}" for name, (_, count, first) in SETS.items() for k in range(count)]
    for name, (_, count, _) in SETS.items():
        records = [{"question": f"Who built {name} {k}?", "golden_answers": [str(k)]} for k in range(count)]
        (folder / name / "test.jsonl").write_text("\n".join(map(json.dumps, records)))
    (folder / "eval").mkdir(exist_ok=True)
    (folder / "eval" / "searchqa_test.json").write_text(json.dumps([{"item_id": one} for one in change(ids)]))


def test_the_official_list_chooses_the_test_questions(folder):
    write_official(folder)
    test = domain_of(folder)._test(random.Random(0))
    assert Counter(query.subtask for query in test) == {column: count for column, count, _ in SETS.values()}
    assert test[60].query == "Who built triviaqa 10?" and set_of(3620) == "triviaqa"
    write_official(folder, lambda ids: [*ids[:-1], "bamboogle_51700"])
    with pytest.raises(UserError, match="bamboogle has 50 questions and lacks number 113; copy the whole file"):
        domain_of(folder)._test(random.Random(0))


def test_missing_or_malformed_data_is_a_one_line_error(folder):
    with pytest.raises(UserError, match="SearchQA needs your own corpus"):
        list(SearchQADomain(EnvironmentConfig(), DataConfig()).splits(None))
    with pytest.raises(UserError, match="SearchQA needs data.items"):
        list(SearchQADomain(EnvironmentConfig(search=SearchConfig(engine="folder")), DataConfig()).splits(None))
    with pytest.raises(UserError, match="has only 24 training questions; lower data.rl_size . data.sft_size, now 104"):
        list(domain_of(folder, rl_size=100).splits(None))
    (folder / "popqa" / "test.jsonl").write_text('{"question": "Who?", "golden_answers": []}')
    with pytest.raises(UserError, match="popqa/test.jsonl, record 1 is not a question with golden_answers"):
        list(domain_of(folder).splits(None))
    for file in (folder / "nq").iterdir():
        file.unlink()
    with pytest.raises(UserError, match="/nq has none of test.jsonl, dev.jsonl, train.jsonl"):
        list(domain_of(folder).splits(None))
