"""Writes a domain's splits into `data.folder`: SFT trajectories, RL queries, test queries, stored baselines (Section 5, Table 1).

    python data/prepare.py travel                                     the paper's numbers, Chinese, full results
    python data/prepare.py travel --config configs/quickstart.yaml    what a run's YAML asks for

Deterministic: the same `data.seed` writes the same bytes. What is there already, made from the same settings by the same code,
is left alone.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from arenarl.config import Config, UserError, load_config  # noqa: E402
from arenarl.environments import make_environment  # noqa: E402
from arenarl.environments.travel_world import build_world  # noqa: E402
from arenarl.errors import guarded  # noqa: E402
from arenarl.files import hash_files, read_json, write_json  # noqa: E402
from arenarl.queries import SUBTASKS  # noqa: E402
from arenarl.runs import timed  # noqa: E402
from arenarl.synthesis import travel_splits  # noqa: E402
from arenarl.terminal import Bar  # noqa: E402
from arenarl.trajectory import read_queries, write_jsonl  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("domain", choices=["travel"])
    parser.add_argument("--config", help="the run's YAML; without it the paper's numbers")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="change one key; may be repeated")
    arguments = parser.parse_args()
    config = load_config(arguments.config or "configs/travel/sft_qwen3_8b.yaml", arguments.overrides)
    folder = Path(config.data.folder)
    settings = {"data": asdict(config.data), "environment": asdict(config.environment), "code": code_hash()}
    manifest = read_manifest(folder, settings)
    if manifest:
        print(f"{folder} is up to date")
    timing = config.run_dir / "data"
    if not manifest or not (timing / "timing.json").is_file():
        with timed(timing, "data"):
            manifest = manifest or prepare(config, folder, settings)
    for name, split in manifest["splits"].items():
        print(f"{folder / name}.jsonl  {split['records']:>6} records  sha256 {split['sha256'][:16]}")


def prepare(config: Config, folder: Path, settings: dict) -> dict:
    """Write all splits; returns the manifest with counts and hashes, which is written last."""
    splits = {}
    environment = make_environment(config.environment, config.data.language)
    with Bar("data", len(SUBTASKS) * config.data.test_per_subtask + config.data.sft_size) as bar:
        for name, records in travel_splits(build_world(config.environment.world_seed), environment, config.data, bar.over):
            path = folder / f"{name}.jsonl"
            write_jsonl(path, records)
            splits[name] = {"records": len(records), "sha256": file_hash(path)}
    check_disjoint(folder)
    manifest = {**settings, "splits": splits}
    write_json(folder / "manifest.json", manifest)
    return manifest


def check_disjoint(folder: Path) -> None:
    """No query text is in two splits, whatever its case and spacing. Raises UserError naming one that is."""
    test = {" ".join(query.query.lower().split()) for query in read_queries(folder / "test_queries.jsonl")}
    rl = {" ".join(query.query.lower().split()) for query in read_queries(folder / "rl_queries.jsonl")}
    with (folder / "sft.jsonl").open(encoding="utf-8") as file:
        sft = {" ".join(json.loads(line)["messages"][0]["content"].lower().split()) for line in file}
    for one, other, names in ((test, rl, "test and RL"), (test, sft, "test and SFT"), (rl, sft, "RL and SFT")):
        if shared := sorted(one & other):
            raise UserError(f"{folder}: {names} share {len(shared)} queries, first: {shared[0]}")
    print(f"{len(test)} test, {len(rl)} RL and {len(sft)} SFT queries: no two splits share one")


def read_manifest(folder: Path, settings: dict) -> dict | None:
    """The folder's manifest, if the folder holds exactly what these settings made."""
    manifest = read_json(folder / "manifest.json") or {"splits": {}}
    files = {folder / f"{name}.jsonl": split["sha256"] for name, split in manifest["splits"].items()}
    has_settings = all(manifest.get(key) == value for key, value in settings.items())
    return manifest if has_settings and all(file.is_file() and file_hash(file) == sha256 for file, sha256 in files.items()) else None


def code_hash() -> str:
    """Of the sources that decide what is generated, so that data made by other code counts as out of date."""
    package = ROOT / "arenarl"
    sources = [package / "queries.py", package / "synthesis.py", *sorted((package / "environments").glob("*.py"))]
    return hash_files(sources)


def file_hash(path: Path) -> str:
    return hash_files([path])


if __name__ == "__main__":
    guarded(main)
