"""The data of two SFT policies: trajectories that passed inspection, and equally many without inspection.

Run: `./reproduce.sh data_quality`, which trains and evaluates both policies. Queries and teacher are the local
server's, all simulated. The test queries, their baselines and RL's queries are the quickstart's; neither SFT set
contains any of these queries.
"""

import argparse
import shutil
from collections.abc import Iterable
from pathlib import Path

from arenarl.config.command_line import add_overrides, as_overrides
from arenarl.config.load import configure
from arenarl.studies.data_pipeline import served
from arenarl.synthesis.stages import run
from arenarl.system.errors import UserError, run_cli
from arenarl.trajectory import Trajectory, read_jsonl, read_queries, text_key, write_jsonl

QUICKSTART = Path("data/quickstart")
SETTINGS = {  # changes of configs/data/local.yaml
    "name": "data-quality",
    "data.folder": "data/quality",
    "data.sft_size": 12_000,  # the quickstart's
    "data.test_per_subtask": 1,  # unused, like the baselines and RL's queries
    "data.baseline_attempts": 1,
    "build.near_duplicate": 1.0,  # the small world does not have enough queries that differ more
    "build.queries_per_call": 50,
    "build.extractor": {"name": "embedded"},
    "build.attempts": 1,
    "build.spare": 0.4,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add_overrides(parser)
    config = configure("configs/data/local.yaml", [*as_overrides(SETTINGS), *parser.parse_args().overrides])
    with served(config):
        build = run(config, ["queries", "trajectories", "inspect"])
    held_out = [query for name in ("test", "rl") for query in read_queries(QUICKSTART / f"{name}_queries.jsonl")]
    taken, size = {text_key(query.query) for query in held_out}, config.data.sft_size
    inspected = (record for record in read_jsonl(build.path("inspected.jsonl")) if record["passed"])
    for name, records in (("inspected", inspected), ("uninspected", read_jsonl(build.path("trajectories.jsonl")))):
        folder = Path(f"data/quality-{name}")
        write_data(folder, map(Trajectory.from_record, records), taken, size)
        print(f"{folder}: {size} trajectories, {name}")


def write_data(folder: Path, trajectories: Iterable[Trajectory], taken: set[str], size: int) -> None:
    """Write the first `size` trajectories whose query is not taken, and copy the quickstart's queries.
    Raises UserError if there are fewer trajectories."""
    fresh = [trajectory for trajectory in trajectories if text_key(trajectory.messages[0]["content"]) not in taken]
    if len(fresh) < size:
        raise UserError(f"{folder}: only {len(fresh)} of {size} trajectories are available; raise build.spare")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("test_queries", "test_baselines", "rl_queries"):
        shutil.copyfile(QUICKSTART / f"{name}.jsonl", folder / f"{name}.jsonl")
    write_jsonl(folder / "sft.jsonl", (trajectory.to_record() for trajectory in fresh[:size]))


if __name__ == "__main__":
    run_cli(main)
