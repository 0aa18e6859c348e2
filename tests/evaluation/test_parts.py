"""What makes stored trajectories out of date: on a copy of the package, whose files are edited one by one."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from arenarl.config.schema import (
    Config,
    EnvironmentConfig,
    EvaluateConfig,
    MCPServerConfig,
    RenamedToolConfig,
    SearchConfig,
)
from arenarl.evaluation.evaluation import Case
from arenarl.evaluation.parts import Part, fingerprint, generating_files
from arenarl.system.repository import ROOT
from arenarl.trajectory import Query, Trajectory, read_jsonl

EDIT = """
import json
from pathlib import Path
from arenarl.config.schema import Config, EnvironmentConfig
from arenarl.evaluation.parts import fingerprint, generating_files
from arenarl.system.repository import ROOT

def prints():
    return [fingerprint(Config(environment=EnvironmentConfig(name=name)), "nowhere") for name in ("travel", "own:Own")]

inside, before, after = generating_files("own:Own"), prints(), {}
assert ROOT == Path.cwd() and set(inside) == {*generating_files("travel"), ROOT / "own.py"}
for path in [path for place in ("arenarl", "configs") for path in ROOT.joinpath(place).rglob("*.*") if path.is_file() and path not in inside]:
    path.write_bytes(path.read_bytes() + b"\\n# edited\\n")
assert prints() == before, "an edit elsewhere"
for path in inside:
    text = path.read_bytes()
    path.write_bytes(text + b"\\n# edited\\n")
    after[str(path.relative_to(ROOT))] = prints()
    path.write_bytes(text)
assert prints() == before
print(json.dumps([before, after]))
"""  # noqa: E501

IMPORT = """
import json, sys
from arenarl.config.schema import EnvironmentConfig, LLMConfig, SearchConfig
from arenarl.domains.environments import environment_class
if {name!r} == "travel":
    import arenarl.rollout.engine, arenarl.rollout.api_policy, arenarl.rollout.policy
made = environment_class({name!r}).from_config(EnvironmentConfig(search=SearchConfig(corpus_size=300)), "en")
print(json.dumps([module.__file__ for name, module in sys.modules.items() if name.startswith("arenarl.")]))
"""


def run(program, folder):
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_edited_document_discards_trajectories_that_searched_it(tmp_path):
    (tmp_path / "one.txt").write_text("Bergen is a port.", encoding="utf-8")
    corpus, folder = SearchConfig(folder=str(tmp_path)), SearchConfig(engine="folder", folder=str(tmp_path))
    before, after = [], []
    for prints in (before, after):
        prints += [
            fingerprint(Config(environment=EnvironmentConfig(name="research", search=search)), "nowhere")
            for search in (corpus, folder)
        ]
        (tmp_path / "one.txt").write_text("Bergen is a port in the west.", encoding="utf-8")
    assert before[0] == after[0] and before[1] != after[1]


def test_an_edit_discards_trajectories_if_they_depend_on_the_file_and_only_then(tmp_path):
    for place in ("arenarl", "configs"):
        shutil.copytree(ROOT / place, tmp_path / place, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "own.py").write_text(
        "from arenarl.domains.travel.tools import TravelEnvironment\n\n\nclass Own(TravelEnvironment):\n    pass\n"
    )
    (travel, own), after = run(EDIT, tmp_path)
    assert {
        "arenarl/rollout/engine.py",
        "arenarl/domains/travel/tools.py",
        "arenarl/trajectory.py",
        "configs/prompts/policy_en.yaml",
    } < after.keys()
    assert not [
        name
        for name in after
        if name.startswith(("arenarl/report", "arenarl/tables", "arenarl/judges", "configs/prompts/judge"))
    ]
    assert [name for name, (of_travel, _) in after.items() if of_travel == travel] == ["own.py"]
    assert own not in {of_own for _, of_own in after.values()}


@pytest.mark.parametrize("name", ["travel", "research"])
def test_all_that_generation_imports_counts(name):
    # the last only names its topologies, for the config
    others = tuple(f"{ROOT}/arenarl/{part}/" for part in ("config", "system", "tournament"))
    loaded = {path for path in run(IMPORT.format(name=name), ROOT) if path and not path.startswith(others)}
    # which this test imports
    known = {str(path) for path in generating_files(name)} | {str(ROOT / "arenarl" / "domains" / "environments.py")}
    assert len(loaded) > 10 and loaded <= known


def test_the_code_of_all_that_mcp_tools_are_made_of_counts():
    pytest.importorskip("mcp", reason="the SDK mcp is not installed: pip install mcp==2.3.0")
    call = RenamedToolConfig(function="arenarl.domains.travel.real_services:search_poi")
    servers = [MCPServerConfig(command=["x"], rename={"search_poi": call}), MCPServerConfig(world="research")]
    files = {path.name for path in generating_files(*EnvironmentConfig(name="mcp", mcp=servers).made_of)}
    assert {"mcp_session.py", "real_services.py", "search.py"} <= files and "schemas.py" not in files


def test_trajectories_of_another_largest_budget_are_not_taken_for_this_ones():
    """More samples, or further budgets below the largest, need nothing anew."""

    def of(**changes):
        return fingerprint(Config(evaluate=EvaluateConfig(**changes)), "nowhere")

    assert of() == of(samples=9) == of(max_turns=[12]) == of(max_turns=[2, 12]) != of(max_turns=[2])


def test_another_judge_needs_no_new_trajectories():
    config = Config()
    before = fingerprint(config, "nowhere")
    config.judge.train.name = "llm"
    assert fingerprint(config, "nowhere") == before
    config.rollout.temperature /= 2
    assert fingerprint(config, "nowhere") != before


def test_stored_cases_take_on_new_verdicts_and_stay_as_they_are_without(tmp_path):
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
