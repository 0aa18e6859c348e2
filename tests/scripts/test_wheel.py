"""The wheel in empty environments and folders, without a clone: what it holds, what it brings, what it says."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from judge_servers import answering, completion, serving, write_judge

from arenarl.system import errors
from arenarl.system.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULES = {"pyyaml": "yaml"}  # distribution -> module, where they differ
MOST_BYTES = 125 * 10**6  # of the bare install, beyond an empty environment; numpy takes 73
TRAINING = {"torch", "datasets", "scipy", "matplotlib", "transformers", "trl", "wandb"}


def names_of(requirements):
    names = (re.split(r"[\[=<>]", requirement)[0] for requirement in requirements)
    return {MODULES.get(name, name.replace("-", "_")) for name in names}


def test_every_import_is_a_dependency_or_belongs_to_an_extra_that_errors_name():
    extras = {extra: set(modules) for extra, modules in errors._EXTRAS.items()}
    known = names_of(PROJECT["dependencies"]) | set().union(*extras.values())
    # brought by a dependency: pydantic, jsonschema, mcp, benchmarks
    known |= {"pydantic_core", "referencing", "jsonschema_specifications", "httpx2", "uvicorn"}
    known |= {"art", "omegaconf", "swift", "verifiers", "verl"}  # arenarl.integrations runs beside them
    for file in ROOT.glob("arenarl/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            modules = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"arenarl"}
            assert modules <= known, (file, modules - known)
    for extra, modules in extras.items():
        assert names_of(PROJECT["optional-dependencies"][extra]) - {"lxml_html_clean"} <= modules, extra


def interpreters():
    """This Python, and the newest one on the PATH or of pyenv."""
    of_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = []
    for minor in range(sys.version_info.minor + 4, sys.version_info.minor, -1):
        found += [f"python3.{minor}", *sorted(of_pyenv.glob(f"3.{minor}.*/bin/python"))]
    newest = next((str(python) for python in found if shutil.which(python) and runs(python)), None)
    return [sys.executable, newest or pytest.param("newer", marks=pytest.mark.skip("no newer Python on this machine"))]


def size_of(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def runs(python):
    return subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT], check=True)
    [file] = folder.glob("arenarl-*.whl")
    return file


@pytest.mark.slow(seconds=40)
@pytest.mark.parametrize("python", interpreters())
def test_the_wheel_ranks_in_an_empty_environment_and_names_what_it_lacks(python, wheel, tmp_path):
    subprocess.run([python, "-m", "venv", tmp_path / "env"], check=True)
    bin_folder, folder = tmp_path / "env" / "bin", tmp_path / "empty"
    empty_size = size_of(tmp_path / "env")
    subprocess.run([bin_folder / "pip", "install", "-q", wheel], check=True)
    assert size_of(tmp_path / "env") - empty_size <= MOST_BYTES
    folder.mkdir()
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(program, *words):
        return subprocess.run([bin_folder / program, *words], cwd=folder, env=clean, capture_output=True, text=True)

    installed = {line["name"] for line in json.loads(run("pip", "list", "--format=json").stdout)}
    assert "arenarl" in installed and not installed & TRAINING
    script = """
import json, sys, arenarl
light = sorted(sys.modules)
from importlib.metadata import version
from importlib.resources import files
from arenarl import tournament_reward
from arenarl.tournament import run_tournament
async def compare(i, j): return 10 - i, 10 - j
tournament_reward(judge="vllm", num_generations=4)
swiss = run_tournament("swiss", 4, compare).ranks_G[0]
typed = (files("arenarl") / "py.typed").is_file()
print(json.dumps([version("arenarl"), "numpy" in light or "pydantic" in light, swiss, typed]))
"""
    assert json.loads(run("python", "-c", script).stdout) == [PROJECT["version"], False, 0.0, True]

    async def favour_the_second(request):
        prompt = (await request.json())["messages"][1]["content"]
        first_is_good = prompt.index("good") < prompt.index("bad")
        return completion(json.dumps({f"agent_{k + 1}": {"quality": 9 - 5 * (k == first_is_good)} for k in (0, 1)}))

    with serving(answering(favour_the_second)) as url:
        write_judge(folder, url)
        (folder / "in.jsonl").write_text(json.dumps({"prompt": "p", "candidates": ["a bad one", "a good one"]}))
        words = ("rank", "in.jsonl", "--judge", "judge.yaml", "--rubric", "quality", "--out", "out.jsonl")
        done = run("arenarl", *words, "--report", "page.html")
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "out.jsonl").read_text())["ranks"] == [1.0, 0.0]
    for command in ("studies.fidelity", "plan --config configs/quickstart.yaml --gpus 1", "report quickstart"):
        lacking = run("python", "-m", *f"arenarl.{command}".split())
        assert lacking.returncode and "pip install 'arenarl[train]'" in lacking.stderr.splitlines()[0], lacking.stderr
