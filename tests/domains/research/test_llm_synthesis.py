"""What an LLM may add to question synthesis, asked over real HTTP:
other words for a question, facts of one's own pages."""

import asyncio
import json
from contextlib import contextmanager

import pytest
from aiohttp import web
from judge_servers import client_of, serving

from arenarl.config.schema import EnvironmentConfig, LLMConfig, ResearchDataConfig, SearchConfig
from arenarl.domains.research.corpus import LINK, build_corpus, read_corpus
from arenarl.domains.research.environment import ResearchEnvironment
from arenarl.domains.research.extraction import add_facts
from arenarl.domains.research.questions import make_questions
from arenarl.domains.research.rephrasing import is_sound, rephrase
from arenarl.trajectory import write_jsonl


@contextmanager
def llm_that_says(reply):
    """An LLM behind HTTP whose reply to the user's message is `reply(message)` as JSON."""

    async def complete(request):
        asked = (await request.json())["messages"][-1]["content"]
        message = {"role": "assistant", "content": json.dumps(reply(asked))}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response(
            {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        )

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    with serving(app) as url:
        yield LLMConfig(name="llm", model="m", base_url=url, api_key_variable=None)


@pytest.fixture(scope="module")
def queries():
    environment = ResearchEnvironment.from_config(
        EnvironmentConfig(results="compact", search=SearchConfig(corpus_size=400)), "en"
    )
    return make_questions(
        build_corpus(0, 400), environment, ResearchDataConfig(plain_share=0.5, hop_weights=[1.0, 1.0]), "llm", 10
    )


def test_sound_words_replace_the_questions_own(tmp_path, queries):
    with llm_that_says(lambda asked: {"question": "Pray tell: " + asked.split("| ")[1].split("\n")[0]}) as llm:
        reworded = asyncio.run(rephrase(client_of(tmp_path), llm, queries, set()))
    assert [query.query for query in reworded] == [f"Pray tell: {query.query}" for query in queries]
    assert [query.constraints for query in reworded] == [query.constraints for query in queries]


@pytest.mark.parametrize(
    "said", ["Who is it, after all?", "{answer} is what I look for in {question}", "{question} I mean {hidden}."]
)
def test_words_that_lose_a_name_or_give_something_away_are_not_used(tmp_path, queries, said):
    by_text = {query.query: query for query in queries}

    def reply(asked):
        query = by_text[asked.split("| ")[1].split("\n")[0]]
        hidden = next(
            (name for name in query.constraints["entities"] if name not in query.query), query.constraints["answer"]
        )
        return {"question": said.format(answer=query.constraints["answer"], question=query.query, hidden=hidden)}

    with llm_that_says(reply) as llm:
        reworded = asyncio.run(rephrase(client_of(tmp_path), llm, queries, set()))
    unnamed = [query for query in queries if not any(name in query.query for name in query.constraints["entities"])]
    for old, new in zip(queries, reworded, strict=True):
        assert new.query == old.query or said.startswith("Who") and old in unnamed


def test_the_same_words_are_not_used_twice(tmp_path, queries):
    taken = {f"Pray tell: {query.query}" for query in queries}
    with llm_that_says(lambda asked: {"question": "Pray tell: " + asked.split("| ")[1].split("\n")[0]}) as llm:
        assert asyncio.run(rephrase(client_of(tmp_path), llm, queries, taken)) == queries


def test_a_name_within_another_word_gives_nothing_away(queries):
    assert not is_sound("", queries[0])
    query = next(query for query in queries if query.constraints["answer"].isdigit())
    assert is_sound(f"{query.query} {query.constraints['answer']}5", query) and not is_sound(
        f"{query.query} {query.constraints['answer']}", query
    )


def test_facts_that_the_page_says_become_a_corpus(tmp_path):
    pages = [
        {
            "url": "w/curie",
            "title": "Marie Curie",
            "text": "Marie Curie was born in 1867. She married Pierre Curie.",
            "links": ["w/pierre"],
        },
        {"url": "w/pierre", "title": "Pierre Curie", "text": "Pierre Curie died in 1906.", "links": ["w/curie"]},
    ]
    facts = [
        {"attribute": "birth year", "value": "1867", "sentence": "Marie Curie was born in 1867."},
        {"attribute": "husband", "value": "Pierre Curie", "sentence": "She married Pierre Curie."},
        {"attribute": "death year", "value": "1906", "sentence": "Pierre Curie died in 1906."},
        {"attribute": "prize", "value": "Nobel", "sentence": "She won the Nobel Prize."},
    ]
    with llm_that_says(lambda asked: {"kind": "physicist", "facts": facts}) as llm:
        found = asyncio.run(add_facts(client_of(tmp_path), llm, pages))
    assert asyncio.run(add_facts(None, LLMConfig(), found)) == found  # nothing is asked again
    write_jsonl(tmp_path / "corpus.jsonl", found)
    corpus = read_corpus(tmp_path / "corpus.jsonl")
    curie = corpus.entities["w/curie"]
    assert [(fact.attribute, fact.target) for fact in curie.facts] == [("birth year", None), ("husband", "w/pierre")]
    assert (
        corpus.entities["w/pierre"].attributes == {"death year": "1906"}
        and LINK not in curie.single
        and curie.noun == "physicist"
    )
