"""Parts that several test files share: the embedded world, teacher trajectories in compact English,
a tiny random policy."""

import importlib.util
import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from arenarl.domains.travel.queries import SUBTASKS, make_queries
from arenarl.domains.travel.teacher import Teacher
from arenarl.domains.travel.tools import TravelEnvironment
from arenarl.domains.travel.world import World, build_world
from arenarl.trajectory import Query, Trajectory, write_jsonl

ROOT = Path(__file__).resolve().parents[1]
os.environ["PYTHONPATH"] = str(ROOT)  # for what tests start in folders of their own
if importlib.util.find_spec("vllm") is None:  # its tests, in an environment of their own, take what there is
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # figures and numbers of processes are those of a machine without a GPU
# a shell's background job ignores Ctrl-C, and so would what tests start
signal.signal(signal.SIGINT, signal.default_int_handler)


SHARED = ("pipeline", "real", "replayed", "researched", "written", "stopping")  # fixtures that run whole scripts


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a run of scripts are on one of xdist's workers, which runs it once:
    in one group each, for xdist joins several to another."""
    for item in items:
        if shared := next((fixture for fixture in SHARED if fixture in getattr(item, "fixturenames", ())), None):
            item.add_marker(pytest.mark.xdist_group(shared))


@pytest.fixture(autouse=True)
def no_place_among_processes():
    """A trainer under DeepSpeed notes in the environment which of how many processes it is:
    scripts that later tests start would believe it."""
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
    """A query with a trajectory of the scripted teacher's."""

    query: Query
    trajectory: Trajectory


@pytest.fixture(scope="session")
def taught(world, compact) -> list[Taught]:
    """40 trajectories for each subtask, of mixed quality."""
    teacher, taken = Teacher(world, compact), set()
    queries = [query for subtask in SUBTASKS for query in make_queries(world, subtask, "en", 40, "tests", taken)]
    return [Taught(query, teacher.solve(query, random.Random(index), 0.5)) for index, query in enumerate(queries)]


@pytest.fixture(scope="session")
def sft_path(taught, tmp_path_factory) -> Path:
    """The trajectories of `taught` as an SFT split."""
    path = tmp_path_factory.mktemp("data") / "sft.jsonl"
    write_jsonl(path, [one.trajectory.to_record() for one in taught])
    return path


@pytest.fixture(scope="session")
def policy_path(sft_path, compact, tmp_path_factory) -> str:
    """A folder with a random two-layer Qwen3 and a tokenizer trained on `taught`."""
    from arenarl.config.schema import PolicyConfig, ScratchConfig
    from arenarl.rollout.policy import prepare_initial_policy
    from arenarl.training.sft_data import training_texts

    shape = ScratchConfig(
        hidden_size=32, intermediate_size=64, num_layers=2, num_heads=2, num_kv_heads=1, vocab_size=700
    )
    folder = tmp_path_factory.mktemp("policy")
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
    """The folder of SmolLM2-135M-Instruct, fetched once for all runs of the tests."""
    from arenarl.rollout.policy import folder_of

    return str(ROOT / folder_of("smollm2-135m-instruct"))


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory):
    """The folder in which data, SFT (ZeRO-3, two processes), RL (two processes)
    and evaluation ran, and what evaluation printed."""
    from scripts import run_well

    folder = tmp_path_factory.mktemp("pipeline")
    run_well(folder, "data/prepare.py", "travel")
    run_well(folder, "train_sft.py", processes=2)
    run_well(folder, "train_rl.py", processes=2)
    return folder, run_well(folder, "evaluate.py")


@pytest.fixture(scope="session")
def folder(pipeline):
    return pipeline[0]


@pytest.fixture
def prepare_script(tmp_path, monkeypatch) -> ModuleType:
    """data/prepare.py as a module, to be run in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("prepare", ROOT / "data" / "prepare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
