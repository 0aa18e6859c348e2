"""The search tool: its two forms, the pipeline's stages, the web as an engine, models and the cache."""

import asyncio
import json
import sqlite3
import threading
from contextlib import closing, contextmanager

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from judge_servers import Script, client_of, llm, serving
from policies import ANSWER, Scripted, call, query
from sites import on_loopback, site

from arenarl.config.load import load_config
from arenarl.config.schema import EnvironmentConfig, RolloutConfig, SearchConfig, WebConfig
from arenarl.domains.environments import make_environment
from arenarl.domains.research.engines import DenseEngine, LocalEngine
from arenarl.domains.research.environment import ResearchEnvironment
from arenarl.domains.research.pages import Hit, Page
from arenarl.domains.research.passages import PageIndex
from arenarl.domains.research.rankers import Embedder
from arenarl.domains.research.search import Cache, SearchTools, best_by_terms
from arenarl.domains.research.web import Fetcher, WebEngine
from arenarl.rollout.engine import Attempt, RolloutEngine
from arenarl.rollout.environment import ToolError, maybe_await
from arenarl.system.errors import UserError

MARA = "Mara Velden is a writer. She was born in Oslo in 1921.\n\nShe won the Holm Prize in 1955."
OSLO = "Oslo is a city of 600,000 people. " + "It has many streets and parks. " * 200
TIDE = "The Long Tide is a novel by Mara Velden. It is about tide pools."
PAGES = [Page("x/mara", "Mara Velden", MARA), Page("x/oslo", "Oslo", OSLO), Page("x/tide", "The Long Tide", TIDE)]
BORN = "Where was Mara Velden born?"


def local(client=None, **keys):
    return SearchTools(SearchConfig(**keys), LocalEngine(PageIndex.build(PAGES, 128), "test"), client)


def ask(environment, name, **arguments):
    return asyncio.run(maybe_await(environment.call(name, arguments)))


def search(tools, query):
    return asyncio.run(tools.search(query))


def browse(tools, url):
    return asyncio.run(tools.browse(url))


def test_results_are_json_or_in_compact_form_one_line_per_page_with_its_title():
    environment = ResearchEnvironment(local())
    first, *_ = json.loads(ask(environment, "search", query=BORN))
    assert first == {"url": "x/mara", "title": "Mara Velden", "snippet": "She was born in Oslo in 1921."}
    assert json.loads(ask(environment, "browse", url="x/mara")) == {"url": "x/mara", "text": MARA}
    environment = ResearchEnvironment(local(results=2, snippet_words=8, summary_above_chars=60), "compact")
    lines = ["Mara Velden: She was born in Oslo in 1921.", "The Long Tide: The Long Tide is a novel by Mara…"]
    assert ask(environment, "search", query=BORN).splitlines() == lines
    assert ask(environment, "browse", url="mara velden") == "Mara Velden is a writer. She was born in Oslo in 1921.…"
    assert ask(environment, "search", query="zebra") == "no results"


LETTERS = Page("letters", "y", " ".join("abcdefghijklmnopqrstuvwxyz") + ". ies y's 1 中文 İ ß.")
TOOLS = SearchTools(SearchConfig(), LocalEngine(PageIndex.build([*PAGES, LETTERS], 128), "test"))
ODD = st.text(alphabet="y'ies’İß中文\ud800\x00 ._-1", max_size=8)
TEXTS = st.one_of(ODD, st.text(max_size=30), st.sampled_from(["y", "Y", "'", "oslo"]))


@given(TEXTS, st.sampled_from([("search", "query"), ("browse", "url")]), st.sampled_from(["full", "compact"]))
def test_any_text_gets_an_answer(text, call, form):
    tool, argument = call
    assert isinstance(ask(ResearchEnvironment(TOOLS, form), tool, **{argument: text}).encode(), bytes)


def test_a_local_engine_answers_at_once_so_that_batches_do_not_depend_on_time():
    for keys in ({}, {"summary_above_chars": 80}, {"browse_chunk_tokens": 32, "search_chunk_tokens": 32}):
        environment = ResearchEnvironment(local(**keys), "compact")
        for _ in range(2):  # computed, then remembered
            assert isinstance(environment.call("search", {"query": BORN}), str)
            assert isinstance(environment.call("browse", {"url": "The Long Tide"}), str)
            assert environment.call("browse", {"url": "nowhere"}).startswith("Error: no page")


def test_wrong_calls_are_observations():
    environment = ResearchEnvironment(local())
    assert ask(environment, "browse", url="Mara Veldn") == 'Error: no page "Mara Veldn". Did you mean "Mara Velden"?'
    assert ask(environment, "browse", url="file:///etc/passwd") == 'Error: no page "file:///etc/passwd".'
    assert ask(environment, "search").startswith("Error: search needs the argument query")
    assert ask(environment, "serch", query="x").startswith('Error: unknown tool "serch". Did you mean "search"?')


def test_chunk_and_summary_limit_a_browsed_page():
    assert len(browse(local(), "Oslo")) <= 2501
    assert len(browse(local(summary_above_chars=None), "Oslo")) == len(OSLO.rstrip())
    text = browse(local(summary_above_chars=None, browse_chunk_tokens=20), "Oslo")
    assert text.startswith("Oslo is a city") and len(text.split()) <= 20
    assert browse(local(summary_above_chars=None, browse_chunk_tokens=None), "Oslo") == OSLO


def test_a_group_shares_a_search_and_the_hit_rate_counts_it():
    tools = local()

    async def group():
        return await asyncio.gather(*(tools.search(BORN) for _ in range(20)))

    first, *others = asyncio.run(group())
    metrics = tools.take_metrics()
    assert others == [first] * 19
    assert metrics["search/hit_rate"] == [0.0] + [1.0] * 19 and len(metrics["search/call_s"]) == 20
    search(tools, BORN)  # in another event loop
    assert tools.take_metrics()["search/hit_rate"] == [1.0]
    assert tools.take_metrics() == {"search/hit_rate": [], "search/call_s": []}


def test_a_slow_search_does_not_block_the_rollouts_event_loop():
    release = threading.Event()

    class Slow(LocalEngine):
        is_local = False

        async def search(self, query, limit):
            assert release.wait(60)  # blocks its thread
            return await super().search(query, limit)

    tools = SearchTools(SearchConfig(cache=None), Slow(PageIndex.build(PAGES, 128), "slow"))

    async def rollouts():
        task = asyncio.create_task(tools.search("Oslo"))
        await asyncio.sleep(0.02)
        assert not task.done()
        release.set()
        return await task

    assert asyncio.run(rollouts())[0].title == "Oslo"


class API:
    """A search API in Serper's format. It sends `replies`, (status, text), one by one, and repeats the last."""

    def __init__(self, *replies):
        self.replies, self.requests = list(replies), []
        self.app = web.Application()
        self.app.router.add_route("*", "/v1", self.reply)

    async def reply(self, request):
        parameters = await request.json() if request.method == "POST" else dict(request.query)
        self.requests.append((request.headers.get("X-API-KEY"), parameters))
        status, text = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return web.Response(status=status, text=text, content_type="application/json", headers={"Retry-After": "0"})


def found(*hits):
    """Return the API's reply with hits of (url, title, snippet)."""
    organic = [{"link": link, "title": title, "snippet": snippet} for link, title, snippet in hits]
    return 200, json.dumps({"organic": organic})


@contextmanager
def web_tools(monkeypatch, server, cache=None, **keys):
    """Yield tools that use a search API and may fetch from this machine."""
    monkeypatch.setenv("SEARCH_API_KEY", "secret")
    with serving(server.app) as endpoint:
        config = WebConfig(endpoint=endpoint, **({"timeout_s": 60.0} | keys))
        yield SearchTools(SearchConfig(cache=cache and str(cache)), WebEngine(config, Fetcher(config, on_loopback)))


PUBLISHED = "When was The Long Tide published?"


def test_a_web_search_reads_pages_and_falls_back_on_snapshots(monkeypatch):
    with site() as (_, url):
        api = API(found((f"{url}/good", "Tide pools", "A novel."), (f"{url}/status/500", "Gone", "A snapshot.")))
        with web_tools(monkeypatch, api, parameters={"gl": "us"}) as tools:
            good, gone = search(tools, PUBLISHED)
    assert good.title == "Tide pools" and "first published in 1950" in good.snippet
    assert (gone.title, gone.snippet) == ("Gone", "A snapshot.")
    assert api.requests == [("secret", {"q": PUBLISHED, "gl": "us"})]


def test_calls_at_once_and_processes_share_results_and_failures_are_not_stored(monkeypatch, tmp_path):
    async def three_at_once(tools, query):
        return await asyncio.gather(*(tools.search(query) for _ in range(3)))

    with site() as (server, url):
        api, rates = API(found((f"{url}/good", "Tide pools", "A novel."))), []
        with web_tools(monkeypatch, api, cache=tmp_path / "cache.sqlite") as tools:
            for process in (tools, SearchTools(tools.config, tools.engine)):  # the second as in another process
                asyncio.run(three_at_once(process, "The Long Tide"))
                browse(process, f"{url}/good")
                rates.append(process.take_metrics()["search/hit_rate"])
        assert len(api.requests) == len(server.requests) == 1
        # hits: first the two other searches and the browsed page; then everything but the two answers
        assert sum(rates[0]) == 3 and sum(rates[1]) == len(rates[1]) - 2
    with site() as (_, url):
        api = API(found((f"{url}/once", "Tide pools", "A snapshot.")))  # the page fails at the first request
        with web_tools(monkeypatch, api, cache=tmp_path / "other.sqlite") as tools:
            failed, read = (search(each, PUBLISHED) for each in (tools, SearchTools(tools.config, tools.engine)))
    assert failed[0].snippet == "A snapshot." and "1950" in read[0].snippet


UNREADABLE = "Error: the search engine's reply could not be read."


@pytest.mark.parametrize(("replies", "observation"), [
    ([(429, "")], "Error: the search engine answers 429."), ([(500, "")], "Error: the search engine answers 500."),
    ([(400, "too\nlong")], "Error: the search engine answers 400: too long."), ([(200, "no JSON")], UNREADABLE),
    ([(200, "[]")], UNREADABLE), ([(200, '{"organic": [{"title": "x"}]}')], UNREADABLE),
    ([(200, "[" * 900 + "]" * 900)], UNREADABLE), ([(200, "[" * 50_000)], UNREADABLE),
    ([(200, '{"organic": null}')], "[]"), ([(500, ""), (429, ""), (200, '{"organic": []}')], "[]"),
    ([(200, '{"organic": [{"link": "u", "title": "\\ud800", "snippet": "\\ud83d"}]}')],
     '[{"url": "u", "title": "?", "snippet": "?"}]'),  # lone surrogates
])  # fmt: skip
def test_a_search_api_error_is_an_observation(monkeypatch, replies, observation):
    with web_tools(monkeypatch, API(*replies)) as tools:
        assert ask(ResearchEnvironment(tools), "search", query="tide") == observation


@pytest.mark.parametrize(("status", "text"), [
    (401, "no"), (402, "no secret"), (403, ""), (400, '{"message": "Not enough credits"}'),
    (422, '{"error": {"code": "SUBSCRIPTION_TOKEN_INVALID"}}'),
])  # fmt: skip
def test_a_key_or_account_that_stays_refused_stops_the_run(monkeypatch, status, text):
    refused = pytest.raises(UserError, match=f"key in SEARCH_API_KEY.*answers {status}")
    with web_tools(monkeypatch, API((status, text))) as tools, refused as error:
        search(tools, "tide")
    assert "secret" not in str(error.value)
    with web_tools(monkeypatch, API((status, text), (200, '{"organic": []}'))) as tools:
        assert search(tools, "tide") == []


def test_an_engine_blocked_by_its_sources_is_an_error_and_not_cached(monkeypatch, tmp_path):
    blocked = {"results": [], "unresponsive_engines": [["google", "Suspended: CAPTCHA"]]}
    api = API((200, json.dumps(blocked)), (200, json.dumps({"results": [], "unresponsive_engines": []})))
    with web_tools(monkeypatch, api, cache=tmp_path / "cache.sqlite", api="searxng") as tools:
        with pytest.raises(ToolError, match="the engines that the search engine asks do not answer"):
            search(tools, "tide")
        assert search(tools, "tide") == []
    with web_tools(monkeypatch, API((403, "Forbidden")), api="searxng") as tools:
        with pytest.raises(UserError, match="json among search.formats"):
            search(tools, "tide")


def test_brave_and_searxng_have_their_own_formats(monkeypatch):
    monkeypatch.setenv("SEARCH_API_KEY", "secret")
    brave = API((200, json.dumps({"web": {"results": [{"url": "u", "title": "t", "description": "d"}]}})))
    searxng = API((200, json.dumps({"results": [{"url": "u", "title": "", "content": "c"}]})))
    for name, api, hit in (("brave", brave, Hit("u", "t", "d")), ("searxng", searxng, Hit("u", "u", "c"))):
        with serving(api.app) as endpoint:
            assert asyncio.run(WebEngine(WebConfig(api=name, endpoint=endpoint)).search("tide", 5)) == [hit]
    assert brave.requests[0][1] == {"q": "tide"} and searxng.requests[0][1] == {"q": "tide", "format": "json"}


def test_a_rollout_goes_on_after_every_fault(monkeypatch, tokenizer):
    """The rollout engine, with a policy that calls every bad page, then the good one, then answers."""
    with site() as (_, url), web_tools(monkeypatch, API((500, ""))) as tools:
        browses = [call("browse", url=f"{url}/{path}") for path in ("cut", "loop", "status/500", "good")]
        generator = Scripted(tokenizer, {"quiet park": [call("search", query="tide"), *browses, ANSWER]})
        limits = RolloutConfig(max_turns=8, max_tokens=50_000, max_turn_tokens=5_000)
        engine = RolloutEngine(generator, tokenizer, lambda: ResearchEnvironment(tools), limits, False)
        trajectory = engine.roll_out([Attempt(query(), 0.0, 0)])[0]
        assert trajectory.stop_reason == "answer"
        assert (trajectory.meta["tool_errors"], trajectory.meta["tool_calls"]) == (4, 5)
        assert len(engine.tool_metrics()["search/call_s"]) == 5


def test_candidates_are_the_best_by_query_then_by_snapshot_then_the_snapshot():
    words = ["oslo", "tide", "prize", "snow", "holm"]
    page = Page("u", "Words", "\n\n".join(f"Here is the {word} of {index}." for index, word in enumerate(words)))
    tools = local(search_chunk_tokens=6, bm25_chunks=2, snapshot_chunks=1)
    texts = tools._candidates("tide and prize", Hit("u", "t", "much snow"), page)
    assert texts == ["Here is the tide of 1.", "Here is the prize of 2.", "Here is the snow of 3.", "much snow"]
    assert tools._candidates("tide and prize", Hit("u", "t"), page) == texts[:2]
    assert best_by_terms("tide", ["a b", "the tide", "c d"], 2) == ["the tide", "a b"]
    assert best_by_terms("the", ["the", "of", "…"], 2) == ["the", "of"]
    assert best_by_terms("zebra", ["a b", "the tide"], 5) == ["a b", "the tide"]
    assert best_by_terms("tide", ["a b", "tide"], None) == ["a b", "tide"]


def test_an_llm_writes_snippets_and_summaries_once(tmp_path):
    script = Script(json.dumps({"snippet": "Born in Oslo, it says. " * 30}), json.dumps({"summary": "A city."}))
    with serving(script.app) as url:
        keys = {"results": 1, "snippet_words": 10, "snippet": llm(url, name="llm"), "summary": llm(url, name="llm")}
        tools, again = (local(client_of(tmp_path), **keys) for _ in range(2))
        snippet = search(tools, "Mara Velden born")[0].snippet
        assert snippet == "Born in Oslo, it says. Born in Oslo, it says…" and browse(tools, "Oslo") == "A city."
        prompt = script.requests[0]["messages"][1]["content"]
        assert all(text in prompt for text in ("| Mara Velden is a writer.", "| Mara Velden born", "at most 10 words"))
        assert search(again, "Mara Velden born")[0].snippet == snippet
    assert len(script.requests) == 2
    with serving(Script("no JSON").app) as url:  # without a reply, extract sentences
        tools = local(client_of(tmp_path), results=1, snippet=llm(url, name="llm"))
        assert search(tools, BORN)[0].snippet == "She was born in Oslo in 1921."


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory):
    """Return a folder with a random BERT, used as embedding model and as cross-encoder."""
    pytest.importorskip("sentence_transformers")
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    words = sorted({word for page in PAGES for word in page.text.lower().replace(".", " ").split()})
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (folder / "words.txt").write_text("\n".join(words), encoding="utf-8")
    BertTokenizerFast(str(folder / "words.txt"), model_max_length=128).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    shape = BertConfig(vocab_size=len(words), num_labels=1, max_position_embeddings=128, **sizes)
    BertForSequenceClassification(shape).save_pretrained(folder)
    return str(folder)


def test_real_models_choose_chunks(tiny_bert, tmp_path):
    models = {"embedder": tiny_bert, "reranker": tiny_bert, "embedded_chunks": 3, "reranked_chunks": 2}
    tools = local(cache=str(tmp_path / "c.sqlite"), **models)
    texts = [f"She was born in {place}." for place in ("oslo", "parks", "streets", "pools", "1921")]
    nearest = tools._embedder.best("She was born in oslo.", texts, 3)
    assert nearest[0] == texts[0] and len(nearest) == 3
    narrowed = asyncio.run(tools._narrow("born", texts, 2))
    assert len(narrowed) == 2 and set(narrowed) < set(texts)
    assert search(tools, BORN)[0].title == "Mara Velden" and "Oslo is a city" in browse(tools, "Oslo")


def test_a_dense_engine_finds_pages_by_their_nearest_chunk_and_stores_the_vectors(tiny_bert, tmp_path):
    index = PageIndex.build(PAGES, 128)
    options = SearchConfig(dense=True, embedder=tiny_bert, indexes=str(tmp_path), results=2, cache=None)
    engine = DenseEngine(index, "pages", options)
    tools = SearchTools(options, engine)
    assert not tools.waits  # so results do not depend on the machine's load
    embedder, texts = Embedder(tiny_bert, "cpu"), index.titled_chunks()
    assert len(texts) > len(PAGES) and texts[0] == f"Mara Velden\n{MARA}"
    for query_text in (BORN, "tide pools", "streets", "no word of these"):
        nearest = [text.partition("\n")[0] for text in embedder.best(query_text, texts, len(texts))]
        assert [result.title for result in search(tools, query_text)] == list(dict.fromkeys(nearest))[:2]
    (stored,) = tmp_path.glob("vectors-*.npy")
    written = stored.stat().st_mtime_ns
    again = DenseEngine(index, "pages", options)
    assert stored.stat().st_mtime_ns == written and (again._vectors_CD == engine._vectors_CD).all()


def test_missing_models_and_keys_are_named(monkeypatch, tmp_path):
    pytest.importorskip("sentence_transformers")
    with pytest.raises(UserError, match=f"environment.search.reranker={tmp_path} cannot be loaded"):
        local(cache=None, reranker=str(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    for key in ("embedder", "reranker"):
        with pytest.raises(UserError, match=f"search.{key} needs a package .*pip install sentence-transformers=="):
            local(cache=None, **{key: "nowhere"})
    monkeypatch.delenv("SEARCH_API_KEY", raising=False)
    brave = SearchConfig(engine="web", web=WebConfig(api="brave"))
    with pytest.raises(UserError, match="set the environment variable SEARCH_API_KEY to the key of .* brave"):
        make_environment(EnvironmentConfig(name="research", search=brave), "en")


def test_the_cache_reads_an_earlier_file_and_refuses_an_unusable_one(tmp_path):
    path, inputs = tmp_path / "c.sqlite", ("engine", "q é", 5, None, ("a", 0.5))
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE TABLE results (key TEXT PRIMARY KEY, stage TEXT, value TEXT)")
        row = ("c37687c551541fe93090f515099fcc65a9c7fd7409adf011ad8b69e4ac63fa32", "chunks", '["q"]')
        database.execute("INSERT INTO results VALUES (?, ?, ?)", row)
    assert asyncio.run(Cache(path).get("chunks", inputs, None)) == ["q"]
    with pytest.raises(UserError, match="change environment.search.cache"):
        Cache(path / "c.sqlite")


@pytest.mark.parametrize(("setting", "message"), [
    ("engine=folder", "folder=None: name the folder"), ("engine=web", "compact names pages by title"),
    ("snippet.name=llm", "snippet.model is missing"), ("resluts=3", "did you mean environment.search.results"),
])  # fmt: skip
def test_invalid_settings_are_refused(setting, message):
    with pytest.raises(UserError, match=message):
        load_config("configs/quickstart.yaml", ["environment.name=research", f"environment.search.{setting}"])


def test_pages_of_the_embedded_corpus_and_of_a_folder_are_found_by_title(tmp_path):
    (tmp_path / "note.txt").write_text("Bergen is a port.", encoding="utf-8")
    folder = SearchConfig(engine="folder", folder=str(tmp_path), indexes=str(tmp_path / "indexes"))
    environment = make_environment(EnvironmentConfig(name="research", search=folder), "en")
    assert [tool["function"]["name"] for tool in environment.tools] == ["search", "browse"]
    assert "Bergen is a port." in ask(environment, "search", query="Bergen")
    corpus = EnvironmentConfig(name="research", results="compact", search=SearchConfig(corpus_size=300))
    environment = make_environment(corpus, "en")
    titles = [page.title for page in environment.search_tools.engine.index.pages[::10]]
    assert [ask(environment, "search", query=title).partition(":")[0] for title in titles] == titles
    assert not any(ask(environment, "browse", url=title).startswith("Error") for title in titles)
