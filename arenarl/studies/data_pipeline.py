"""Does inspection help? Run all stages of data/build.py on 200 queries with a local server's models, then grade the
trajectories by the truth.

    ./reproduce.sh data_pipeline

The server's models invent facts, refuse, repeat themselves and break off at stated rates. Its inspector gets the same
prompt as a real one, and errs at a stated rate. The truth has no part in inspection. Afterwards it shows which
trajectories have no answer or state a fact without a source, and how many of them each kind of inspection found. All
figures are simulated.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from statsmodels.stats.proportion import proportion_confint

from arenarl.config.command_line import parse_arguments
from arenarl.config.load import config_to_yaml
from arenarl.config.schema import Config
from arenarl.judges.judge import Examiner, make_examiner
from arenarl.report import markdown
from arenarl.report.provenance import commit
from arenarl.report.summary import format_figure
from arenarl.synthesis.build import Build
from arenarl.synthesis.card import inspection_table
from arenarl.synthesis.inspection import Inspected, Inspector
from arenarl.synthesis.server import running_roles
from arenarl.synthesis.stages import STAGES, run
from arenarl.system.atomic_files import json_hash, read_json, write_json, write_text
from arenarl.system.errors import UserError, run_cli
from arenarl.trajectory import Query, Trajectory, read_jsonl

KINDS = {"ungrounded": "ungrounded", "wrong": "ungrounded or a constraint unmet"}  # both include a missing answer
FILE = "data_pipeline.json"  # in the folder `results` of the config
# shares of the server's requests, of each model's replies, and of the inspector's verdicts
RATES = {"faults": 0.05, "mistakes": 0.3, "inspector_error": 0.1}


def main() -> None:
    config, _ = parse_arguments(__doc__)
    options = [word for name, rate in RATES.items() for word in (f"--{name.replace('_', '-')}", str(rate))]
    with served(config, *options):
        graded = grade(run(config, list(STAGES)))
    file = Path(config.results) / FILE
    write_json(file, {"commit": commit(), "rates": RATES, **graded})
    print(tables(read_json(file)))
    print(f"written: {file}")


@contextmanager
def served(config: Config, *options: str) -> Iterator[None]:
    """Run the local server at the config's port inside the block. Each set of options has its own store of replies,
    which a second start reuses."""
    port = urlsplit(config.build.teacher.base_url or "").port
    if port is None:
        url = f"build.teacher.base_url={config.build.teacher.base_url}"
        raise UserError(f"{url} has no port; set a local address with a port, as configs/data/local.yaml does")
    folder = config.run_dir / "build"
    config.judge.store = str(folder / f"replies-{json_hash(options)[:8]}.sqlite")
    settings = folder / "server.yaml"
    write_text(settings, config_to_yaml(config))
    with running_roles(str(settings), (), port, *options):
        yield


def grade(build: Build) -> dict[str, Any]:
    """Return the faulty shares before and after inspection, and precision and recall of each kind of inspection."""
    examine = make_examiner(build.domain)
    cases = [Inspected.from_record(record) for record in read_jsonl(build.path("inspected.jsonl"))]
    before = [Trajectory.from_record(record) for record in read_jsonl(build.path("trajectories.jsonl"))]
    pairs = [(case.query, trajectory) for case, trajectory in zip(cases, before, strict=True)]
    faults = [_faults(examine, *pair) for pair in pairs]
    faults_after = [_faults(examine, case.query, case.trajectory) for case in cases if case.passed]
    inspector = Inspector(build.build.inspector, build.client, build.domain, build.tools)
    by_rules = [bool(inspector.by_rules(*pair)) for pair in pairs]
    by_llm = [bool(problems) for problems in asyncio.run(_inspect(inspector, pairs))]
    both = [any(flags) for flags in zip(by_rules, by_llm, strict=True)]
    kinds = {"rules alone": by_rules, "inspector alone": by_llm, "both": both}
    ungrounded, wrong = zip(*faults, strict=True)
    return {
        "before inspection": _shares(faults),
        "after it": _shares(faults_after),
        "found": {
            name: _precision_and_recall(flags, ungrounded) | {"wrong": _precision_and_recall(flags, wrong)}
            for name, flags in kinds.items()
        },
        "stages": {name: read_json(build.path(f"{name}.json")) for name in STAGES},
        "spent": vars(build.client.store.spent(build.client.stage)),
    }


async def _inspect(inspector: Inspector, pairs: Sequence[tuple[Query, Trajectory]]) -> list[list]:
    return await asyncio.gather(*(inspector.by_llm(*pair) for pair in pairs))


def _faults(examine: Examiner, query: Query, trajectory: Trajectory) -> tuple[bool, bool]:
    """Return two flags of a trajectory: `ungrounded` and `wrong` (see `KINDS`)."""
    if not trajectory.valid:
        return True, True
    truth = examine(query, trajectory)
    is_ungrounded = truth.figures()["groundedness"] < 100
    return is_ungrounded, is_ungrounded or not all(truth.checklist().values())


def _shares(faults: Sequence[tuple[bool, bool]]) -> dict[str, Any]:
    return {kind: _share(flags) for kind, flags in zip(KINDS, zip(*faults, strict=True), strict=True)}


def _share(flags: Sequence[bool]) -> dict[str, Any]:
    """Return the share of true flags in percent, with a 95 % Wilson interval."""
    low, high = proportion_confint(sum(flags), len(flags), method="wilson") if flags else (float("nan"), float("nan"))
    return {"of": len(flags), "share": 100 * sum(flags) / max(len(flags), 1), "ci": [100 * low, 100 * high]}


def _precision_and_recall(flags: Sequence[bool], is_faulty: Sequence[bool]) -> dict[str, Any]:
    """Return the share of flagged trajectories that are faulty, and of faulty trajectories that are flagged."""
    return {"precision": _share([*compress(is_faulty, flags)]), "recall": _share([*compress(flags, is_faulty)])}


def tables(found: dict[str, Any]) -> str:
    """Return docs/data.md's tables of the stored figures."""
    faulty = [
        [label, str(found[name]["wrong"]["of"]), *(_format(found[name][kind]) for kind in KINDS)]
        for name, label in (("before inspection", "before inspection"), ("after it", "after inspection"))
    ]
    kinds = [
        [name, *(_format(part[figure]) for part in (kind, kind["wrong"]) for figure in ("precision", "recall"))]
        for name, kind in found["found"].items()
    ]
    names = [f"{figure}, {name}, %" for name in KINDS.values() for figure in ("precision", "recall")]
    seconds = ", ".join(f"{name} {record['seconds']:g} s" for name, record in found["stages"].items())
    rates = ", ".join(f"{name} {rate:g}" for name, rate in found["rates"].items())
    return "\n\n".join([
        markdown.table(["SFT trajectories", "how many", *(f"{name}, %" for name in KINDS.values())], faulty),
        markdown.table(["inspection", *names], kinds),
        inspection_table(found["stages"]["inspect"]["counts"]["rounds"]),
        f"{seconds}; {found['spent']['calls']:,} calls. Rates: {rates}.",
    ])  # fmt: skip


def _format(share: dict[str, Any]) -> str:
    return format_figure({"mean": share["share"], "ci": share["ci"]})


if __name__ == "__main__":
    run_cli(main)
