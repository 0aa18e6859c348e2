"""Changes that make stored trajectories out of date; generation changes only with its version."""

import asyncio
import hashlib
import json
import pickle
import random
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from policies import Scripted, call, think

from arenarl.config.schema import Config, EnvironmentConfig, EvaluateConfig, LLMConfig, RolloutConfig, SearchConfig
from arenarl.domains.environments import environment_maker
from arenarl.evaluation.evaluation import Case, Panel, roll_out_and_judge
from arenarl.evaluation.parts import GENERATION, Part, fingerprint, run_parts
from arenarl.judges.judge import Verdict, rubric_of
from arenarl.rollout.engine import RolloutEngine, attempts_at
from arenarl.system.own_code import own_code
from arenarl.system.prompt_files import use_folder
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import Query, Trajectory, read_jsonl

STORED = json.loads(Path(__file__).with_name("generation.json").read_text(encoding="utf-8"))
ANSWER = think("<answer>\n{}\n</answer>")
SCRIPTS = {  # world -> query -> turns: valid and invalid tool calls, answers of every kind
    "travel": {
        "Find a quiet cafe in Chengdu.": [
            call("universal_search", query="quiet cafe in Chengdu"), call("around_search", location="Bamboo Cafe"),
            call("get_navigation", start="Bamboo Cafe", end="Snow Cafe"), ANSWER.format("Bamboo Cafe ¥40"),
        ],
        "How do I get from Chengdu to Xi'an?": [
            call("search_train_tickets", date="2026-05-01", from_city="Chengdu", to_city="Xi'an"),
            call("search_poi", city="Xi'an"), call("no_such_tool"), call("search_poi", query="Lotus Park"), "no answer",
        ],
        "A form that nobody reads.": ["<tool_call>\n{broken}\n</tool_call>"] * 5,
    },
    "research": {
        "Who founded the Osholm Bears?": [
            call("search", query="Osholm Bears founded"), call("browse", url="Osholm Bears"), call("browse", url="x"),
            ANSWER.format("Marta Rosden"),
        ],
        "Name a port.": [think("nothing more")],
    },
    "none": {"Write a poem.": [ANSWER.format("Rain.")], "Write another.": [think("<answer>\n\n</answer>")]},
}  # fmt: skip


def test_generation_is_unchanged_until_its_version_is_raised(tokenizer):
    """Hashes prompts, parsing, tools and stops for a policy with fixed turns. If it fails after a change of generation,
    raise GENERATION in arenarl/evaluation/parts.py, and store version and hash in generation.json."""
    generated = []
    for world, scripts in SCRIPTS.items():
        environment = EnvironmentConfig(name=world, search=SearchConfig(corpus_size=300), results="compact")
        policy = Scripted(tokenizer, scripts)
        limits = RolloutConfig(max_tokens=1500, max_turn_tokens=200, max_turns=5, force_answer=world == "travel")
        engine = RolloutEngine(policy, tokenizer, environment_maker(environment, "en"), limits, world == "research")
        queries = [Query(str(number), world, "", "en", text) for number, text in enumerate(scripts)]
        for trajectory in engine.roll_out(attempts_at(queries, 0.8, 0)):
            generated.append([trajectory.messages, trajectory.stop_reason, sum(trajectory.policy_mask_T)])
        requests = [(tokenizer.decode(one.token_ids), one.seed, one.temperature) for one in policy.requests]
        generated += sorted(requests)  # concurrent requests have no order
    digest = hashlib.sha256(json.dumps(generated, sort_keys=True).encode()).hexdigest()
    assert STORED == {"version": GENERATION, "sha256": digest}


@pytest.mark.parametrize("edited", ["own.py", "helper.py", "deeper.py", "late.py"])
def test_an_edit_of_the_users_environment_or_of_its_imports_discards_trajectories(own_modules, tmp_path, edited):
    """A folder named like an installed package lies beside it; one import is inside a function."""
    (tmp_path / "mcp").mkdir()
    texts = {"own.py": "import helper\n\nclass Own:\n    def call(self):\n        from late import x\n",
             "helper.py": "from deeper import two\n", "late.py": "x = 1\n", "unused.py": "x = 1\n",
             "deeper.py": "from pathlib import Path\n\ntwo = [2]\n"}  # fmt: skip
    own_modules(texts)
    config = Config(environment=EnvironmentConfig(name="own:Own"))
    before = fingerprint(config, "nowhere")
    own_modules({"unused.py": "x = 2\n"})
    assert fingerprint(config, "nowhere") == before and len(own_code(["own:Own", "travel"])) == 4
    own_modules({edited: texts[edited] + "# edited\n"})
    assert fingerprint(config, "nowhere") != before != fingerprint(Config(), "nowhere")


def test_a_new_temperature_budget_or_document_needs_new_trajectories_and_a_new_judge_does_not(tmp_path):
    def of(**changes):
        return fingerprint(Config(evaluate=EvaluateConfig(**changes)), "nowhere")

    assert of() == of(samples=9) == of(max_turns=[12]) == of(max_turns=[2, 12]) != of(max_turns=[2])
    config = Config()
    config.judge.train.name = "llm"
    config.environment.timeout_s = 1.0
    assert fingerprint(config, "nowhere") == of()
    config.rollout.temperature /= 2
    assert fingerprint(config, "nowhere") != of()
    (tmp_path / "one.txt").write_text("Bergen is a port.", encoding="utf-8")
    corpus, folder = SearchConfig(folder=str(tmp_path)), SearchConfig(engine="folder", folder=str(tmp_path))

    def prints():
        configs = [Config(environment=EnvironmentConfig(name="research", search=search)) for search in (corpus, folder)]
        return [fingerprint(config, "nowhere") for config in configs]

    before = prints()
    (tmp_path / "one.txt").write_text("Bergen is a port in the west.", encoding="utf-8")
    assert [one == other for one, other in zip(before, prints(), strict=True)] == [True, False]


@pytest.fixture
def own_prompts(tmp_path):
    """Return `write(file, text)`, which replaces a file of prompts and puts the folder into effect."""

    def write(file, text):
        (tmp_path / file).write_text(text, encoding="utf-8")
        use_folder(tmp_path)

    yield write
    use_folder(None)


@pytest.mark.parametrize("name", ["system", "without_tools"])
def test_another_prompt_of_models_behind_an_api_discards_their_trajectories_alone(own_prompts, name):
    policies, before = ("nowhere", LLMConfig(name="llm", model="m")), []
    for text in ("Plan.", "Plan a trip."):
        own_prompts("policy_zh.yaml", f"{name}: {text}\n")
        before.append([fingerprint(Config(), policy) for policy in policies])
    (local, api), (same, other) = before
    assert local == same and api != other


def test_stored_cases_are_rewritten_only_with_new_verdicts(tmp_path):
    def case(outcome):
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "<answer>\n!\n</answer>"}]
        trajectory = Trajectory("q", messages, "answer", meta={"turns": 1})
        return Case(Query("q", "travel", "Search", "en", "?"), trajectory, None, np.array([[outcome]]))

    path = tmp_path / "rl_greedy.jsonl"
    assert Part(path, "first").trajectories is None
    Part(path, "first").write([case(1.0)])
    stored, before = Part(path, "first"), path.stat().st_mtime_ns
    assert stored.trajectories == [case(1.0).trajectory]
    stored.write([case(1.0)])
    assert path.stat().st_mtime_ns == before
    stored.write([case(-1.0)])
    assert [record["outcomes"] for record in read_jsonl(path)] == [[[-1]]]
    assert Part(path, "first").trajectories and Part(path, "second").trajectories is None


def test_damaged_trajectories_are_generated_again(tmp_path, capsys):
    rng, path = random.Random(0), tmp_path / "rl_greedy.jsonl"
    trajectories = [Trajectory(f"q{number}", [{"role": "user", "content": "?"}], "answer") for number in range(3)]
    cases = [Case(Query(each.query_id, "travel", "s", "en", "?"), each, None, np.ones((1, 0))) for each in trajectories]
    Part(path, "1").write(cases)
    whole = {file: file.read_bytes() for file in (path, path.with_suffix(".json"))}
    assert Part(path, "1").trajectories == trajectories and Part(path, "2").trajectories is None
    for file, content in list(whole.items()) * 60:
        place = rng.randrange(len(content))
        file.write_bytes(content[:place] + bytes([rng.randrange(256)]) * rng.randrange(3) + content[place + 1 :])
        assert Part(path, "1").trajectories in (None, trajectories)
        file.write_bytes(content)
    assert Part(path, "1").trajectories == trajectories and "was changed; generating" in capsys.readouterr().out


class Judge:
    """Prefers the longer answer, and records that it was asked."""

    def __init__(self):
        self.asked = threading.Event()

    async def compare(self, query, first, second, repeat=0):
        self.asked.set()
        names, lengths = rubric_of(query).names, [float(len(one.answer)) for one in (first, second)]
        return Verdict(tuple(dict.fromkeys(names, length) for length in lengths), rubric_of(query).total)

    async def score(self, query, trajectory, *_):
        self.asked.set()
        total = float(len(trajectory.answer))
        return Verdict((dict.fromkeys(rubric_of(query).names, total),), rubric_of(query).total)


class AfterTheJudge(Scripted):
    """Generates the second query's turn only once the judge was asked."""

    def __init__(self, tokenizer, scripts, judge):
        super().__init__(tokenizer, scripts)
        self.judge = judge

    async def generate(self, request):
        turn = await super().generate(request)
        if "another" in self.tokenizer.decode(request.token_ids) and not await asyncio.to_thread(
            self.judge.asked.wait, 120
        ):
            raise TimeoutError("generation ends before the judge is asked")
        return turn


def test_evaluation_judges_while_it_generates_and_keeps_no_tokens(tokenizer):
    judge, texts = Judge(), ("Write a poem.", "Write another.")
    queries = [Query(text, "travel", "Search", "en", text) for text in texts]
    generator = AfterTheJudge(tokenizer, {text: [ANSWER.format("Rain. " * 300)] for text in texts}, judge)
    maker = environment_maker(EnvironmentConfig(name="none"), "en")
    engine = RolloutEngine(generator, tokenizer, maker, RolloutConfig(max_tokens=4096), schemas_in_prompt=False)
    ticks, attempts = [], attempts_at(queries, 0.0, 0)
    cases = roll_out_and_judge(engine, attempts, {}, Panel([judge], None), tick=lambda: ticks.append(1))
    assert [case.query for case in cases] == queries and len(ticks) == 2
    for case in cases:
        one = case.trajectory
        assert [one.prompt_ids, one.completion_ids, one.policy_mask_T, one.logprobs_T] == [[]] * 4
        assert one.policy_tokens > 300 and len(pickle.dumps(one)) < 5 * one.policy_tokens + 2000
        assert case.score == len(one.answer)


class Rows:
    """An engine whose answers depend on query, temperature and seed; records the sizes of its rollouts."""

    def __init__(self, rows):
        self.generator, self.sizes = SimpleNamespace(rows=rows) if rows else SimpleNamespace(), []

    def roll_out(self, attempts, tick):
        self.sizes.append(len(attempts))
        texts = [str(stable_seed(one.seed, one.temperature) % 10**6) for one in attempts]
        trajectories = [
            Trajectory(one.query.query_id, [{"role": "assistant", "content": ANSWER.format(text)}], "answer")
            for one, text in zip(attempts, texts, strict=True)
        ]
        for index in reversed(range(len(attempts))):
            tick(index, trajectories[index])
        return trajectories


@pytest.mark.parametrize("has_baselines", [True, False])
def test_vllm_generates_as_many_parts_as_its_cache_holds_and_figures_are_those_of_single_parts(tmp_path, has_baselines):
    queries = [Query(f"q{number}", "travel", "Search", "en", f"Find cafe {number}.") for number in range(4)]
    baselines = {one.query_id: Trajectory(one.query_id, [], "answer") for one in queries} if has_baselines else {}
    config = Config(evaluate=EvaluateConfig(samples=4))  # and a greedy trajectory of each query
    figures = {}
    for rows in (0, 1, 8, 9, 1000):
        engine, folder = Rows(rows), tmp_path / str(rows)
        parts = {("p", *one, 12): Part(folder / f"{one}.jsonl", "f") for one in config.evaluate.attempts}
        arguments = (lambda name, engine=engine: engine), queries, dict(baselines), Panel([Judge()], None)
        tested = run_parts(config, parts, *arguments, None, lambda: None)
        figures[rows] = {key: [[case.to_record() for case in sample] for sample in samples]
                         for key, samples in tested.cases.items()}  # fmt: skip
        sizes = {0: [4] * 5, 1: [4] * 5, 8: [8, 8, 4], 9: [12, 8], 1000: [20]}[rows]
        alone = [4] if rows >= 8 and not has_baselines else []  # the first part becomes the baseline
        assert engine.sizes == (alone + {8: [8, 8], 9: [12, 4], 1000: [16]}[rows] if alone else sizes)
        assert all(len(list(read_jsonl(part.cases))) == 4 for part in parts.values())
    assert all(one == figures[0] for one in figures.values())
