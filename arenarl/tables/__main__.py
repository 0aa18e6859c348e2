"""The papers' tables and figures on a laptop. A file of configs/tables lists the rows, each a run for every seed.

    python -m arenarl.tables table2 [table3 ...] [--quick] [--row NAME ...] [--seed 5 ...] [--again]

Each finished run is stored at once in results/<table>/rows.jsonl. From the seeds that the table lists, `pages` makes
table.json, a figure and the documents' tables. `--again` repeats stored runs and compares the results. Your own file in
configs/tables runs the same way. Its comparisons form a separate family, so no star of a shipped table depends on them.
"""

import argparse
from pathlib import Path

from arenarl.config.command_line import in_range
from arenarl.system.errors import UserError, run_cli
from arenarl.tables.rows import FOLDER, LATER_TABLES, TABLES, new_seeds, read_table, runs_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    known = f"one of {', '.join(TABLES)} (or all of these), {', '.join(LATER_TABLES)}"
    parser.add_argument("tables", nargs="+", metavar="TABLE", help=known)
    parser.add_argument("--row", action="append", default=[], dest="rows", help="only this row; may be repeated")
    seed = "this seed instead of the table's; may be repeated"
    parser.add_argument("--seed", action="append", default=[], dest="seeds", type=int, help=seed)
    smoke = "smoke test of minutes with one seed and a few steps; writes to runs/quick"
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--quick", action="store_true", help=smoke)
    again = "repeat stored runs and compare the results; writes to runs/again"
    kinds.add_argument("--again", action="store_true", help=again)
    workers = "concurrent runs, one core each (default: 2)"
    parser.add_argument("--workers", type=in_range(int, 1), default=2, help=workers)
    arguments = parser.parse_args()

    names = list(TABLES) if arguments.tables == ["all"] else arguments.tables
    tables = {name: read_table(name) for name in names}
    folder = "quick" if arguments.quick else "again" if arguments.again else "tables"
    results = Path("runs") / folder if folder != "tables" else Path("results")
    unknown = [row for row in arguments.rows if not any(row in table.rows for table in tables.values())]
    if len(tables) > 1 and unknown:
        raise UserError(f"no row {unknown[0]} in {', '.join(names)}; configs/tables lists the rows")
    runs = []
    for name, table in tables.items():
        if arguments.quick and not table.quick.seeds:
            how = "add quick: {seeds: [0], set: {rl.steps: 4}}, with the keys that make a run short"
            raise UserError(f"{FOLDER / name}.yaml has no seeds for --quick; {how}")
        rows = [row for row in arguments.rows if row in table.rows or len(tables) == 1]
        if rows or not arguments.rows:
            runs += runs_of(name, table, rows, arguments.seeds, folder, arguments.quick)
            if line := new_seeds(name, table, arguments.seeds):
                print(line, flush=True)
    if not runs:
        raise UserError(f"{', '.join(names)}: nothing to run; give a row a config")

    from arenarl.tables.pages import write_tables  # imported here because these load scipy and matplotlib
    from arenarl.tables.runner import missing_runs, run_all
    from arenarl.tables.summary import compare_with_stored

    missing = {run.key for run in missing_runs(runs, results)} if arguments.again else set()
    there = {run.key: run.loaded.run_dir for run in runs if run.key not in missing}
    failures = run_all(runs, results, arguments.workers)
    if arguments.again:
        for name, table in tables.items():
            print(compare_with_stored(name, results, Path("results"), table.figure, there))
    else:
        shipped = {name: read_table(name) for name in TABLES}
        for family in (shipped, *({name: table} for name, table in tables.items() if name not in shipped)):
            if chosen := [name for name in names if name in family]:
                print(write_tables(chosen, family, results, folder, arguments.quick))
                pages = ", ".join(str(results / name / "README.md") for name in chosen)
                print(f"written: {pages}{'; a smoke test, whose figures mean nothing' * arguments.quick}")
    if failures:
        raise UserError("; ".join(failures))


if __name__ == "__main__":
    run_cli(main)
