"""Changes that make stored trajectories out of date; generation changes only with its version."""

import hashlib
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from policies import Scripted, call, think

from arenarl.config.schema import Config, EnvironmentConfig, EvaluateConfig, RolloutConfig, SearchConfig
from arenarl.domains.environments import environment_maker
from arenarl.evaluation.evaluation import Case
from arenarl.evaluation.parts import GENERATION, Part, fingerprint, own_code
from arenarl.rollout.engine import RolloutEngine, attempts_at
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


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return `write(modules)`, which writes a user's modules into a folder on the import path."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write(modules):
        for name, text in modules.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


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
def test_an_edit_of_the_users_environment_or_of_its_imports_discards_trajectories(own, tmp_path, edited):
    """A folder named like an installed package lies beside it; one import is inside a function."""
    (tmp_path / "mcp").mkdir()
    texts = {"own.py": "import helper\n\nclass Own:\n    def call(self):\n        from late import x\n",
             "helper.py": "from deeper import two\n", "late.py": "x = 1\n", "unused.py": "x = 1\n",
             "deeper.py": "from pathlib import Path\n\ntwo = [2]\n"}  # fmt: skip
    own(texts)
    config = Config(environment=EnvironmentConfig(name="own:Own"))
    before = fingerprint(config, "nowhere")
    own({"unused.py": "x = 2\n"})
    assert fingerprint(config, "nowhere") == before and len(own_code(["own:Own", "travel"])) == 4
    own({edited: texts[edited] + "# edited\n"})
    assert fingerprint(config, "nowhere") != before != fingerprint(Config(), "nowhere")


def test_in_a_folder_without_an_init_only_imported_modules_count(own, tmp_path):
    own({"folder/world.py": "from . import rules\nfrom arenarl import trajectory\n\nclass World:\n    pass\n",
         "folder/rules.py": "from folder.cities import CITIES\n", "folder/cities.py": "CITIES = []\n",
         "folder/other.py": ""})  # fmt: skip
    assert [path.name for path in own_code(["folder.world:World"])] == ["cities.py", "rules.py", "world.py"]


def test_a_users_package_counts_whole_and_this_project_does_not(own, tmp_path):
    own(
        {
            "pack/__init__.py": "",
            "pack/world.py": "from arenarl.rollout.environment import NoTools\n",
            "pack/lazy.py": "",
        }
    )
    assert [path.name for path in own_code(["pack.world:NoTools"])] == ["__init__.py", "lazy.py", "world.py"]
    assert own_code(["travel", "arenarl.rollout.environment:NoTools"]) == []


def test_an_edited_document_discards_trajectories_that_searched_it(tmp_path):
    (tmp_path / "one.txt").write_text("Bergen is a port.", encoding="utf-8")
    corpus, folder = SearchConfig(folder=str(tmp_path)), SearchConfig(engine="folder", folder=str(tmp_path))

    def prints():
        configs = [Config(environment=EnvironmentConfig(name="research", search=search)) for search in (corpus, folder)]
        return [fingerprint(config, "nowhere") for config in configs]

    before = prints()
    (tmp_path / "one.txt").write_text("Bergen is a port in the west.", encoding="utf-8")
    assert [one == other for one, other in zip(before, prints(), strict=True)] == [True, False]


def test_a_new_temperature_or_budget_needs_new_trajectories_and_a_new_judge_does_not():
    def of(**changes):
        return fingerprint(Config(evaluate=EvaluateConfig(**changes)), "nowhere")

    assert of() == of(samples=9) == of(max_turns=[12]) == of(max_turns=[2, 12]) != of(max_turns=[2])
    config = Config()
    config.judge.train.name = "llm"
    config.environment.timeout_s = 1.0
    assert fingerprint(config, "nowhere") == of()
    config.rollout.temperature /= 2
    assert fingerprint(config, "nowhere") != of()


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
