"""Figures and page of a run.

    python -m arenarl.report quickstart

draws the figures of a run and writes its page, results/<run>/report.html. Give the run's name, its folder in runs/, or
its YAML with --config. A table's row is a run too, such as `tables/babyai_dpo`; its results are in runs/ as well.
"""

import argparse
from pathlib import Path

from arenarl.config.command_line import add_overrides, refuse_overrides_without_config
from arenarl.config.load import load_config
from arenarl.config.yaml_text import read_yaml
from arenarl.system.errors import UserError, run_cli


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("run", nargs="?", help="the run's name, or its folder in runs/")
    group.add_argument("--config", help="the run's YAML, instead of its name")
    add_overrides(parser)
    arguments = parser.parse_args()
    refuse_overrides_without_config(parser, arguments)
    from arenarl.report.page import write_page  # only here: it needs matplotlib

    if arguments.config:
        config = load_config(arguments.config, arguments.overrides)
        run_dir, results_dir = config.run_dir, config.results_dir
    else:
        run_dir, results_dir = folders_of(arguments.run)
    print(f"written: {write_page(run_dir, results_dir)}")


def folders_of(run: str) -> tuple[Path, Path]:
    """Return the folder of a run, which is given by name or folder, and the folder of its evaluation's results."""
    runs, folder = Path("runs").resolve(), Path(run)
    if folder.is_absolute() or folder.parts[:1] in (("runs",), ("..",)):
        if not folder.resolve().is_relative_to(runs):
            raise UserError(f"{run} is not a folder in {runs}; give a run's name, or its folder in runs/")
        folder = folder.resolve().relative_to(runs)
    config = Path("runs") / folder / "evaluate" / "config.yaml"
    results = read_yaml(config.read_text(encoding="utf-8"))["results"] if config.is_file() else "results"
    return Path("runs") / folder, Path(results) / folder


if __name__ == "__main__":
    run_cli(main)
