"""Writes a domain's splits into `data.folder`: SFT trajectories, RL queries, test queries, stored baselines (Section 5, Table 1).

    python data/prepare.py travel                              the paper's numbers, Chinese, full results
    python data/prepare.py --config configs/quickstart.yaml    what a run's YAML asks for

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
from arenarl.domains import Domain, make_domain, needs  # noqa: E402
from arenarl.environments import make_environment  # noqa: E402
from arenarl.errors import guarded  # noqa: E402
from arenarl.files import hash_files, read_json, write_json  # noqa: E402
from arenarl.runs import timed  # noqa: E402
from arenarl.terminal import Bar  # noqa: E402
from arenarl.trajectory import read_queries, write_jsonl  # noqa: E402

PAPER = {"travel": "configs/travel/sft_qwen3_8b.yaml", "research": "configs/research/sft_qwen3_8b.yaml"}  # domain -> the run with the paper's numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("domain", nargs="?", choices=PAPER, help="whose data of the paper's size, if there is no --config")
    parser.add_argument("--config", help="the run's YAML, which names its domain")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="change one key; may be repeated")
    arguments = parser.parse_args()
    if not (arguments.domain or arguments.config):
        parser.error(f"name a domain ({', '.join(PAPER)}) or a --config")
    config = load_config(arguments.config or PAPER[arguments.domain], arguments.overrides)
    domain, folder = make_domain(config), Path(config.data.folder)
    if arguments.domain not in (None, domain.name):
        raise UserError(f"{arguments.config} is of the domain {domain.name}, not {arguments.domain}; leave the domain out")
    needs(domain, "splits", "makes its data; or write the four files that data/README.md describes yourself")
    settings = {"data": asdict(config.data), "environment": asdict(config.environment), "code": hash_files(domain.sources)}
    manifest = read_manifest(folder, settings)
    if manifest:
        print(f"{folder} is up to date")
    timing = config.run_dir / "data"
    if not manifest or not (timing / "timing.json").is_file():
        with timed(timing, "data"):
            manifest = manifest or prepare(domain, config, folder, settings)
    for name, split in manifest["splits"].items():
        print(f"{folder / name}.jsonl  {split['records']:>6} records  sha256 {split['sha256'][:16]}")


def prepare(domain: Domain, config: Config, folder: Path, settings: dict) -> dict:
    """Write all splits; returns the manifest with counts and hashes, which is written last."""
    splits = {}
    environment = make_environment(config.environment, config.data.language)
    with Bar("data", len(domain.subtasks) * config.data.test_per_subtask + config.data.sft_size) as bar:
        for name, records in domain.splits(environment, bar.over):
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


def file_hash(path: Path) -> str:
    return hash_files([path])


if __name__ == "__main__":
    guarded(main)
