"""LLM steps of question synthesis over real HTTP: rewording of questions, and facts from your own pages."""

import asyncio
import json
from contextlib import contextmanager

import pytest
from judge_servers import by_prompt, client_of, completion, llm, serving

from arenarl.config.schema import EnvironmentConfig, LLMConfig, ResearchDataConfig, SearchConfig
from arenarl.domains.research.corpus import build_corpus, read_corpus
from arenarl.domains.research.environment import ResearchEnvironment
from arenarl.domains.research.extraction import add_facts, is_sound, rephrase
from arenarl.domains.research.questions import make_questions
from arenarl.trajectory import write_jsonl


@contextmanager
def llm_server(reply):
    """Serve an LLM that replies to a user's message with `reply(message)` as JSON."""
    with serving(by_prompt(lambda message, number: completion(json.dumps(reply(message))))) as url:
        yield llm(url, name="llm")


@pytest.fixture(scope="module")
def queries():
    config = EnvironmentConfig(results="compact", search=SearchConfig(corpus_size=400))
    environment = ResearchEnvironment.from_config(config, "en")
    research = ResearchDataConfig(plain_share=0.5, hop_weights=[1.0, 1.0])
    return make_questions(build_corpus(0, 400), environment, research, "llm", 10)


def reworded(tmp_path, queries, reply, taken=()):
    """Return the queries from `rephrase`, with an LLM that replies to a text with `reply(text)`."""
    with llm_server(lambda message: {"question": reply(message.split("| ")[1].split("\n")[0])}) as model:
        return asyncio.run(rephrase(client_of(tmp_path), model, queries, set(taken)))


def test_a_sound_rewording_is_used_once(tmp_path, queries):
    new = reworded(tmp_path, queries, "Pray tell: {}".format)
    assert [query.query for query in new] == [f"Pray tell: {query.query}" for query in queries]
    assert [query.constraints for query in new] == [query.constraints for query in queries]
    assert reworded(tmp_path, queries, "Pray tell: {}".format, {query.query for query in new}) == queries


@pytest.mark.parametrize(
    "wording", ["Who is it, after all?", "{answer} is what I look for in {question}", "{question} I mean {hidden}."]
)
def test_a_rewording_that_loses_a_name_or_reveals_one_is_not_used(tmp_path, queries, wording):
    by_text = {query.query: query.constraints for query in queries}

    def reply(text):
        answer, names = by_text[text]["answer"], by_text[text]["entities"]
        hidden = next((name for name in names if name not in text), answer)
        return wording.format(answer=answer, question=text, hidden=hidden)

    for old, new in zip(queries, reworded(tmp_path, queries, reply), strict=True):
        names_nobody = not any(name in old.query for name in old.constraints["entities"])
        assert new.query == old.query or wording.startswith("Who") and names_nobody


def test_the_answer_inside_a_longer_word_is_not_revealed(queries):
    query = next(query for query in queries if query.constraints["answer"].isdigit())
    given_away = f"{query.query} {query.constraints['answer']}"
    assert is_sound(f"{given_away}5", query) and not is_sound(given_away, query) and not is_sound("", query)


def test_facts_that_the_page_states_become_a_corpus(tmp_path):
    text = "Marie Curie was born in 1867. She married Pierre Curie."
    pages = [
        {"url": "w/curie", "title": "Marie Curie", "text": text, "links": ["w/pierre"]},
        {"url": "w/pierre", "title": "Pierre Curie", "text": "Pierre Curie died in 1906.", "links": ["w/curie"]},
    ]
    facts = [
        {"attribute": "birth year", "value": "1867", "sentence": "Marie Curie was born in 1867."},
        {"attribute": "husband", "value": "Pierre Curie", "sentence": "She married Pierre Curie."},
        {"attribute": "death year", "value": "1906", "sentence": "Pierre Curie died in 1906."},
        {"attribute": "prize", "value": "Nobel", "sentence": "She won the Nobel Prize."},
    ]
    with llm_server(lambda message: {"kind": "physicist", "facts": facts}) as model:
        extended = asyncio.run(add_facts(client_of(tmp_path), model, pages))
    assert asyncio.run(add_facts(None, LLMConfig(), extended)) == extended  # pages with facts need no call
    write_jsonl(tmp_path / "corpus.jsonl", extended)
    corpus = read_corpus(tmp_path / "corpus.jsonl")
    curie, pierre = corpus.entities["w/curie"], corpus.entities["w/pierre"]
    assert [(fact.attribute, fact.target) for fact in curie.facts] == [("birth year", None), ("husband", "w/pierre")]
    assert pierre.single["death year"].value == "1906" and curie.noun == "physicist"
