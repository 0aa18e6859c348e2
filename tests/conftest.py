"""Shared fixtures: the embedded world, teacher trajectories in compact English, a tiny random policy, whole runs."""

import gc
import importlib.util
import os
import random
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest

from arenarl.domains.travel.queries import SUBTASKS, make_queries
from arenarl.domains.travel.teacher import Teacher
from arenarl.domains.travel.tools import TravelEnvironment
from arenarl.domains.travel.world import World, build_world
from arenarl.trajectory import Query, Trajectory, write_jsonl

ROOT = Path(__file__).resolve().parents[1]
os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{ROOT}/tests/support/startup"  # for subprocesses in other folders
if importlib.util.find_spec("vllm") is None:  # vLLM's tests use the GPU, in a separate environment
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # expected figures and process counts are those of a CPU machine
# background jobs of a shell ignore Ctrl-C, and their subprocesses would too
signal.signal(signal.SIGINT, signal.default_int_handler)
# the same examples in every run, no time limits; other examples: --hypothesis-profile=default
hypothesis.settings.load_profile("ci")


SHARED = ("pipeline", "real", "replayed", "researched", "written")  # fixtures that run whole scripts


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests that share a run of scripts on one worker of xdist, so that it runs once; one group per test."""
    for item in items:
        if shared := next((fixture for fixture in SHARED if fixture in getattr(item, "fixturenames", ())), None):
            item.add_marker(pytest.mark.xdist_group(shared))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Import all tests without garbage collection, and keep what they imported out of it from then on.

    Otherwise every full pass, such as the one at the start of each trainer, takes half a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def no_launcher_variables():
    """Remove the rank and the number of processes that DeepSpeed writes into the environment after each test."""
    before = set(os.environ)
    yield
    for name in {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} - before:
        os.environ.pop(name, None)


@pytest.fixture(scope="session")
def world() -> World:
    return build_world(0)


@pytest.fixture(scope="session")
def compact(world) -> TravelEnvironment:
    return TravelEnvironment(world, "compact")


@dataclass(frozen=True)
class Taught:
    """A query and the scripted teacher's trajectory."""

    query: Query
    trajectory: Trajectory


@pytest.fixture(scope="session")
def taught(world, compact) -> list[Taught]:
    """40 trajectories of mixed quality for each subtask."""
    teacher, taken = Teacher(world, compact), set()
    queries = [query for subtask in SUBTASKS for query in make_queries(world, subtask, "en", 40, "tests", taken)]
    return [Taught(query, teacher.solve(query, random.Random(seed), 0.5)) for seed, query in enumerate(queries)]


@pytest.fixture(scope="session")
def sft_path(taught, tmp_path_factory) -> Path:
    """The trajectories of `taught` as an SFT split."""
    path = tmp_path_factory.mktemp("data") / "sft.jsonl"
    write_jsonl(path, [pair.trajectory.to_record() for pair in taught])
    return path


@pytest.fixture(scope="session")
def policy_path(sft_path, compact, tmp_path_factory) -> str:
    """A folder with a random two-layer Qwen3 and a tokenizer trained on `taught`."""
    from arenarl.config.schema import PolicyConfig, ScratchConfig
    from arenarl.rollout.scratch_policy import prepare_initial_policy
    from arenarl.training.sft_data import training_texts

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1}
    shape, folder = ScratchConfig(**sizes, vocab_size=700), tmp_path_factory.mktemp("policy")
    return prepare_initial_policy(PolicyConfig(scratch=shape), folder, training_texts(sft_path), compact.tools, seed=0)


@pytest.fixture(scope="session")
def tokenizer(policy_path) -> Any:
    from arenarl.rollout.policy import load_tokenizer

    return load_tokenizer(policy_path)


@pytest.fixture(scope="session")
def model(policy_path) -> Any:
    from arenarl.rollout.policy import load_model

    return load_model(policy_path, "float32").eval()


@pytest.fixture(scope="session")
def smollm2() -> str:
    """The folder of SmolLM2-135M-Instruct, downloaded once for all test runs."""
    from arenarl.rollout.policy import folder_of

    return str(ROOT / folder_of("smollm2-135m-instruct"))


@pytest.fixture(scope="session")
def postgresql():
    """A running PostgreSQL server; tests are skipped where none can be had."""
    from postgresql import serving_postgresql

    with serving_postgresql() as server:
        yield server


@pytest.fixture
def database(postgresql, monkeypatch) -> str:
    """The URL of an empty PostgreSQL database; its password is in PGPASSWORD."""
    from postgresql import PASSWORD

    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    return postgresql.url(postgresql.new_database())


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow(seconds=1))])
def place(request, tmp_path) -> str:
    """The place of an empty database: a new file, then a new PostgreSQL database."""
    return request.getfixturevalue("database") if request.param == "postgresql" else str(tmp_path / "new" / "s")


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory):
    """The folder of a whole tiny run, and the output of its evaluation: data, SFT (ZeRO-3), RL, evaluation.

    SFT and RL use two processes. Tests may add to the folder; `unbroken` is an unchanged copy.
    """
    from scripts import run_well

    folder = tmp_path_factory.mktemp("pipeline")
    run_well(folder, "data/prepare.py", "travel")
    run_well(folder, "train_sft.py", processes=2)
    run_well(folder, "train_rl.py", processes=2)
    output = run_well(folder, "evaluate.py")
    shutil.copytree(folder, f"{folder}-unbroken")
    return folder, output


@pytest.fixture(scope="session")
def folder(pipeline):
    return pipeline[0]


@pytest.fixture
def prepare_script(tmp_path, monkeypatch) -> ModuleType:
    """data/prepare.py as a module, in a temporary working directory."""
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("prepare", ROOT / "data" / "prepare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def own_modules(tmp_path, monkeypatch):
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
