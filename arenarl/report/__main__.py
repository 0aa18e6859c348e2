"""Figures and page of a run.

    python -m arenarl.report quickstart

draws the figures of a run and writes its page, runs/<run>/report.html, and case.md, a test query before and after RL.
Give the run's name, its folder in runs/, or its YAML with --config. A table's row is a run too, such as
`tables/babyai_dpo`. With --case, it prints a training group with its points and rewards instead.

    python -m arenarl.report --compare quickstart round-robin

compares runs with the first one, in the terminal and as runs/<first run>/comparison.html.
"""

import argparse

from arenarl.config.command_line import add_overrides, refuse_overrides_without_config
from arenarl.config.load import load_config
from arenarl.report.conclusion import folders_of
from arenarl.report.worked_case import worked_case
from arenarl.system.errors import run_cli


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("run", nargs="?", help="the run's name, or its folder in runs/")
    group.add_argument("--compare", nargs="+", metavar="RUN", help="two or more runs, to compare with the first one")
    group.add_argument("--config", help="the run's YAML, instead of its name")
    case = "print a training group with its points and rewards instead"
    parser.add_argument("--case", action="store_true", help=case)
    add_overrides(parser)
    arguments = parser.parse_args()
    refuse_overrides_without_config(parser, arguments)
    if arguments.compare:
        if arguments.case:
            parser.error("--case prints a group of one run; leave out --compare")
        if len(arguments.compare) < 2:
            parser.error("--compare needs at least two runs")
        from arenarl.report.comparison import compare_runs  # only here: it needs matplotlib

        print(f"written: {compare_runs(arguments.compare)}")
        return
    if arguments.config:
        config = load_config(arguments.config, arguments.overrides)
        run_dir, results_dir = config.run_dir, config.results_dir
    else:
        run_dir, results_dir = folders_of(arguments.run)
    if arguments.case:
        print(worked_case(run_dir))
        return
    from arenarl.report.page import write_page  # only here: it needs matplotlib

    print(f"written: {write_page(run_dir, results_dir)}")
    from arenarl.report.before_after import write_case  # only here: it loads torch, which a missing run does not need

    if case := write_case(run_dir, results_dir):
        print(f"written: {case}")


if __name__ == "__main__":
    run_cli(main)
