"""Write a domain's splits into `data.folder`: SFT trajectories, RL queries, test queries, stored baselines (Table 1).

    python data/prepare.py travel                              the paper's counts, Chinese, full results
    python data/prepare.py --config configs/quickstart.yaml    the settings of a run's YAML
    python data/prepare.py travel --from Alibaba-NLP/Open-Travel --set data.folder=data/open-travel    published data

The same `data.seed` writes the same bytes. Files made by the same code from the same settings and sources are kept.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from arenarl.config.command_line import add_overrides  # noqa: E402
from arenarl.config.load import configure  # noqa: E402
from arenarl.config.schema import Config  # noqa: E402
from arenarl.domains.domain import Domain, make_domain, needs  # noqa: E402
from arenarl.domains.environments import environment_maker  # noqa: E402
from arenarl.domains.prepared import manifest_of  # noqa: E402
from arenarl.domains.public_data import PublicData, find_source, local_path, read_public_data  # noqa: E402
from arenarl.llm.client import open_client  # noqa: E402
from arenarl.rollout.instances import temporary_environment  # noqa: E402
from arenarl.run.timing import timed  # noqa: E402
from arenarl.system.atomic_files import hash_files, write_json  # noqa: E402
from arenarl.system.errors import UserError, keep_tracebacks, run_cli  # noqa: E402
from arenarl.system.own_code import code_hashes  # noqa: E402
from arenarl.system.progress import Bar  # noqa: E402
from arenarl.system.prompt_files import prompt_hashes  # noqa: E402
from arenarl.trajectory import SPLIT_FILES, read_queries, read_trajectories, text_key, write_jsonl  # noqa: E402

# domain -> the run with the paper's numbers
PAPER = {name: f"configs/{name}/sft_qwen3_8b.yaml" for name in ("travel", "research", "writing")}
# files with the code that reads `data.source`
PUBLIC_CODE = [
    *(ROOT / "arenarl" / "domains" / name for name in ("public_data.py", "published_records.py")),
    *(ROOT / "arenarl" / "trajectory" / name for name in ("messages.py", "records.py", "text.py", "vocabulary.py")),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    domain_help = "domain to prepare with the paper's counts, without --config"
    parser.add_argument("domain", nargs="?", choices=PAPER, help=domain_help)
    parser.add_argument("--config", help="the run's YAML, which sets the domain")
    source = {"nargs": "+", "metavar": "SOURCE", "dest": "sources"}
    parser.add_argument("--from", help="published data sets, same as data.source", **source)
    add_overrides(parser)
    arguments = parser.parse_args()
    if not (arguments.domain or arguments.config):
        parser.error(f"name a domain ({', '.join(PAPER)}) or a --config")
    sources = [f"data.source={json.dumps(arguments.sources)}"] if arguments.sources else []
    config = configure(arguments.config or PAPER[arguments.domain], [*sources, *arguments.overrides])
    domain, folder = make_domain(config.environment, config.data), Path(config.data.folder)
    if arguments.domain not in (None, domain.name):
        what = f"the domain of {arguments.config} is {domain.name}, not {arguments.domain}"
        raise UserError(f"{what}; leave out the domain")
    if not config.data.source:
        if domain.has_own_queries:
            print(f"{folder} holds queries of your own: nothing is prepared")
            return
        how = "name published data with data.source, or write the files of data/README.md yourself"
        needs(domain, "splits", f"makes its data; {how}")
    settings = {"data": asdict(config.data), "environment": asdict(config.environment)}
    if config.data.items:
        settings["items"] = hash_files(sorted(Path(config.data.items).rglob("*.json*")))
    settings |= code_hashes(settings)
    settings |= {
        "code": hash_files(PUBLIC_CODE if config.data.source else domain.sources),
        "prompts": prompt_hashes(config.prompts.folder).get("synthesis_en.yaml"),
        "sources": local_hashes(config),
    }
    manifest = read_manifest(folder, settings)
    if manifest:
        print(f"{folder} is up to date")
    timing = config.run_dir / "data"
    if not manifest or not (timing / "timing.json").is_file():
        timing.mkdir(parents=True, exist_ok=True)
        keep_tracebacks(timing)
        with timed(timing, "data"):
            manifest = manifest or prepare_alone(domain, config, folder, settings)
    for name, split in manifest["splits"].items():
        print(f"{folder / name}.jsonl  {split['records']:>6} records  sha256 {split['sha256'][:16]}")


def prepare_alone(domain: Domain, config: Config, folder: Path, settings: dict) -> dict:
    """Prepare the data under a lock, because runs share it; do nothing if another process prepared it meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        return read_manifest(folder, settings) or prepare(domain, config, folder, settings)


def prepare(domain: Domain, config: Config, folder: Path, settings: dict) -> dict:
    """Write all splits, and at the end the manifest with their counts and hashes; return the manifest."""
    refuse_changed(folder)
    public = load_public(config, folder) if config.data.source else None
    write_json(folder / "manifest.json", {"splits": {}})  # marks an unfinished folder
    splits = {}
    for name, records in public.splits.items() if public else generate(domain, config):
        path = folder / f"{name}.jsonl"
        write_jsonl(path, records)
        splits[name] = {"records": len(records), "sha256": hash_files([path])}
    if public or not domain.compares_splits:
        check_disjoint(folder)
    manifest = {**settings, "origin": public.origin if public else "generated", "splits": splits}
    write_json(folder / "manifest.json", manifest)
    return manifest


def generate(domain: Domain, config: Config) -> Iterator[tuple[str, list]]:
    """Yield the domain's splits by name, with a progress bar over the queries that the teacher solves."""
    if config.environment.name == "mcp":
        how = f"add --set environment.name={config.environment.domain} --set environment.mcp=[], or name data.source"
        raise UserError(f"environment.name=mcp: the teacher cannot use MCP servers; {how}")
    total = len(domain.subtasks) * config.data.test_per_subtask + config.data.sft_size
    make = environment_maker(config.environment, config.data.language)
    with temporary_environment(make) as environment, Bar("data", total) as bar:
        client = open_client([config.data.research.rephraser], config.judge, f"{config.run_name}/data")
        yield from domain.splits(environment, bar.over, client)


def load_public(config: Config, folder: Path) -> PublicData:
    """Read `data.source` and print the notes; raise UserError if the folder has an SFT file of another source."""
    with temporary_environment(environment_maker(config.environment, config.data.language)) as environment:
        public = read_public_data(config.data, config.environment.domain, environment.tools)
    if "sft" not in public.splits and (folder / "sft.jsonl").is_file():
        what = f"{folder}/sft.jsonl does not come from data.source, which has no SFT trajectories"
        raise UserError(f"{what}; add it to data.source or set another data.folder")
    for note in public.notes:
        print(note)
    return public


def local_hashes(config: Config) -> list[str | None]:
    """Return the content hash of each local source; None for a hub data set, so that no network is needed."""
    return [
        hash_files(find_source(source, config.data.divide).files) if local_path(source) else None
        for source in config.data.source
    ]


def check_disjoint(folder: Path) -> None:
    """Raise UserError if a query is in two splits; case and spacing do not matter."""
    test, rl = (read_queries(folder / f"{split}_queries.jsonl") for split in ("test", "rl"))
    trajectories = read_trajectories(folder / "sft.jsonl") if (folder / "sft.jsonl").is_file() else []
    openings = ((m["content"] for m in trajectory["messages"] if m["role"] == "user") for trajectory in trajectories)
    sft = {text_key(next(opening, "")) for opening in openings}  # a system message may come before the query
    texts = [{text_key(query.query) for query in queries} for queries in (test, rl)]
    # items of a world may share a text but not a task
    shares_texts = any(len(unique) < len(queries) for unique, queries in zip(texts, (test, rl), strict=True))
    tasks = [{text_key(query.task) for query in queries} for queries in (test, rl)] if shares_texts else texts
    for a, b, names in ((*tasks, "test and RL"), (texts[0], sft, "test and SFT"), (texts[1], sft, "RL and SFT")):
        if shared := sorted(a & b):
            raise UserError(f"{folder}: {names} share {len(shared)} queries, first: {shared[0]}")
    print(f"{len(test)} test, {len(rl)} RL and {len(sft)} SFT queries: no two splits share one")


def refuse_changed(folder: Path) -> None:
    """Raise UserError for files that the user wrote or edited, because `prepare` would overwrite them."""
    manifest = manifest_of(folder)
    if manifest and "data" not in manifest:  # left by a killed preparation
        return
    splits = manifest["splits"] if manifest else {}
    others = [] if manifest else [folder / "manifest.json"]
    for path in filter(Path.is_file, [*(folder / f"{name}.jsonl" for name in SPLIT_FILES), *others]):
        if path.stem not in splits:
            how = "name another data.folder, or add the file to data.source to prepare it"
            raise UserError(f"{path} was not made by this script; {how}")
        if hash_files([path]) != splits[path.stem]["sha256"]:
            raise UserError(f"{path} was changed after this script made it; delete it, or name another data.folder")


def read_manifest(folder: Path, settings: dict) -> dict | None:
    """Return the folder's manifest if its settings and all files are unchanged, otherwise None."""
    manifest = manifest_of(folder) or {"splits": {}}
    hashes = {folder / f"{name}.jsonl": split["sha256"] for name, split in manifest["splits"].items()}
    is_same = all(manifest.get(key) == value for key, value in settings.items())
    is_same = is_same and all(file.is_file() and hash_files([file]) == sha256 for file, sha256 in hashes.items())
    return manifest if is_same else None


if __name__ == "__main__":
    run_cli(main)
