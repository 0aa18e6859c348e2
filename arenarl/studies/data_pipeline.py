"""Whether inspection helps: all stages of data/build.py on 200 queries, with models that a local server plays,
graded by the truth.

Run: `./reproduce.sh data_pipeline`. The server invents facts, refuses, repeats itself and breaks off, each at a stated
rate; its inspector sees what a real one sees, and errs at a stated rate. The truth decides nothing: afterwards it says
which trajectories state a fact that no tool result bears out, or end without an answer, and so how many of these each
kind of inspection finds. All figures are of simulated models.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from arenarl.system.atomic_files import read_json, write_json, write_text
from arenarl.system.database import json_hash
from arenarl.system.errors import UserError, guarded
from arenarl.trajectory import Query, Trajectory, read_jsonl

KINDS = {"ungrounded": "ungrounded", "wrong": "ungrounded or a constraint unmet"}  # one without an answer is both
FILE = Path("results") / "data_pipeline.json"
# shares: of the requests, of what each model does, of the inspector's verdicts
FAULTS, MISTAKES, INSPECTOR_ERROR = 0.05, 0.3, 0.1


def main() -> None:
    config, _ = parse_arguments(__doc__)
    options = ("--faults", str(FAULTS), "--mistakes", str(MISTAKES), "--inspector-error", str(INSPECTOR_ERROR))
    with served(config, *options):
        graded = grade(run(config, list(STAGES)))
    rates = {"faults": FAULTS, "mistakes": MISTAKES, "inspector_error": INSPECTOR_ERROR}
    write_json(FILE, {"commit": commit(), "rates": rates, **graded})
    print(tables(read_json(FILE)))
    print(f"written: {FILE}")


@contextmanager
def served(config: Config, *options: str) -> Iterator[None]:
    """The local server while this lasts, at the port that the config names. Its replies have a store of their own for
    these rates, where a second start finds them."""
    port = urlsplit(config.build.teacher.base_url or "").port
    if port is None:
        url = f"build.teacher.base_url={config.build.teacher.base_url}"
        raise UserError(f"{url} names no port of this machine, as configs/data/local.yaml does")
    folder = config.run_dir / "build"
    config.judge.store = str(folder / f"replies-{json_hash(options)[:8]}.sqlite")
    settings = folder / "server.yaml"
    write_text(settings, config_to_yaml(config))
    with running_roles(str(settings), (), port, *options):
        yield


def grade(build: Build) -> dict[str, Any]:
    """What the truth says of the trajectories before and after, and of what each kind of inspection says of them."""
    examine = make_examiner(build.domain)
    cases = [Inspected.from_record(record) for record in read_jsonl(build.path("inspected.jsonl"))]
    first = [Trajectory.from_record(record) for record in read_jsonl(build.path("trajectories.jsonl"))]
    queries = [case.query for case in cases]
    is_faulty, is_wrong = zip(
        *(_faults(examine, query, trajectory) for query, trajectory in zip(queries, first, strict=True)), strict=True
    )
    inspector = Inspector(build.build.inspector, build.client, build.domain, build.tools)
    by_rules = [bool(inspector.by_rules(query, trajectory)) for query, trajectory in zip(queries, first, strict=True)]
    by_llm = asyncio.run(_asked(inspector, queries, first))
    both = [one or other for one, other in zip(by_rules, by_llm, strict=True)]
    after, wrong_after = zip(
        *(_faults(examine, case.query, case.trajectory) for case in cases if case.passed), strict=True
    )
    kinds = {"rules alone": by_rules, "inspector alone": by_llm, "both": both}
    return {
        "before inspection": {"ungrounded": _share(is_faulty), "wrong": _share(is_wrong)},
        "after it": {"ungrounded": _share(after), "wrong": _share(wrong_after)},
        "found": {name: _found(said, is_faulty) | {"wrong": _found(said, is_wrong)} for name, said in kinds.items()},
        "stages": {name: read_json(build.path(f"{name}.json")) for name in STAGES},
        "spent": vars(build.client.store.spent(build.client.stage)),
    }


async def _asked(inspector: Inspector, queries: Sequence[Query], trajectories: Sequence[Trajectory]) -> list[bool]:
    found = await asyncio.gather(
        *(inspector.by_llm(query, trajectory) for query, trajectory in zip(queries, trajectories, strict=True))
    )
    return list(map(bool, found))


def _faults(examine: Examiner, query: Query, trajectory: Trajectory) -> tuple[bool, bool]:
    """Whether it has no answer, or a fact in it that no tool result bears out;
    and whether it has that fault or leaves a constraint unmet."""
    if not trajectory.valid:
        return True, True
    truth = examine(query, trajectory)
    is_faulty = truth.figures()["groundedness"] < 100
    return is_faulty, is_faulty or not all(truth.checklist().values())


def _share(flags: Sequence[bool]) -> dict[str, Any]:
    """In percent, with a Wilson interval of 95 %."""
    low, high = proportion_confint(sum(flags), len(flags), method="wilson") if flags else (float("nan"), float("nan"))
    return {"of": len(flags), "share": 100 * sum(flags) / max(len(flags), 1), "ci": [100 * low, 100 * high]}


def _found(said: Sequence[bool], is_faulty: Sequence[bool]) -> dict[str, Any]:
    """Precision: how many of those that were found fault with are faulty. Recall: how many of the faulty were found."""
    return {
        "precision": _share([truth for told, truth in zip(said, is_faulty, strict=True) if told]),
        "recall": _share([told for told, truth in zip(said, is_faulty, strict=True) if truth]),
    }


def tables(found: dict[str, Any]) -> str:
    """What docs/data.md shows, of the stored findings."""
    faulty = [
        [name, str(found[name]["wrong"]["of"]), *(_shown(found[name][kind]) for kind in KINDS)]
        for name in ("before inspection", "after it")
    ]
    kinds = [
        [name, *(_shown(part[figure]) for part in (one, one["wrong"]) for figure in ("precision", "recall"))]
        for name, one in found["found"].items()
    ]
    seconds = {name: record["seconds"] for name, record in found["stages"].items()}
    taken = ", ".join(f"{name} {value:g} s" for name, value in seconds.items())
    return "\n\n".join([
        markdown.table(["SFT trajectories", "how many", *(f"{name}, %" for name in KINDS.values())], faulty),
        markdown.table(["inspection", *(f"{figure}, {name}, %" for name in KINDS.values()
                                        for figure in ("precision", "recall"))], kinds),
        inspection_table(found["stages"]["inspect"]["counts"]["rounds"]),
        f"{taken}; {found['spent']['calls']:,} calls. Rates: " + ", ".join(f"{name} {rate:g}" for name,
                                                                           rate in found["rates"].items()) + ".",
    ])  # fmt: skip


def _shown(one: dict[str, Any]) -> str:
    return format_figure({"mean": one["share"], "ci": one["ci"]})


if __name__ == "__main__":
    guarded(main)
