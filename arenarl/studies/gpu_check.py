"""Check everything that one GPU can check. Each part stores its figures as soon as it ends.

    ./reproduce.sh gpu_check [--minutes 8] [--short] [--parts NAME ...] [--again]

results/gpu/<card>.json is rewritten after every part, so a kill keeps the figures of finished parts. A part that fails
is recorded with its traceback, or with its command's exit code and the end of its log, and the next part starts. Every
part has a time limit, and `--minutes` limits all parts together. Nothing is downloaded.

The same command resumes: successful parts are kept, unless the code, Python or a library has changed since; `--again`
repeats them. `--short` takes the smallest sizes, also without a GPU. Its figures do not measure speed, so they go to
runs/gpu_check, not to results/.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from re import sub
from typing import Any

from arenarl.config.command_line import in_range
from arenarl.report import markdown
from arenarl.report.provenance import LIBRARIES, commit, installed_version
from arenarl.studies.gpu_parts import PARTS, Figures, Part, PartEnded, Workplace
from arenarl.system.atomic_files import hash_files, read_json, write_json
from arenarl.system.errors import UserError, run_cli
from arenarl.system.repository import ROOT

FOLDER = Path("results/gpu")
WORK = Path("runs/gpu_check")
LEAST_S = 15.0  # least time left for a part to start. Our choice
CARD = "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')"


def card_name() -> str:
    """Return the GPU's name; "" without a GPU. A subprocess reads it, because this process would hold GPU memory."""
    done = subprocess.run([sys.executable, "-c", CARD], capture_output=True, text=True, check=False)
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"torch does not start: {message}; reinstall the packages (rm -r .venv)")
    return done.stdout.strip()


def origin() -> dict[str, Any]:
    """Return code hash, Python and library versions; a part is repeated when one of them changes."""
    patterns = ("*.py", "arenarl/**/*.py", "configs/**/*.*", "data/prepare.py")
    files = [path for pattern in patterns for path in ROOT.glob(pattern)]
    versions = {name: installed_version(name) for name in (*LIBRARIES, "vllm")}
    return {"code": hash_files(sorted(files))[:12], "python": sys.version.split()[0], "versions": versions}


def run_parts(
    parts: Sequence[Part], path: Path, record: Figures, about: Figures, place: Workplace, limit_scale: float = 1.0
) -> None:
    """Run parts in their order and write `record` to `path` after each.

    Args:
        about: stored with each part: date, commit and origin.
        place: where parts run. All parts end by its `ends_at`; each part gets a copy with its own log and limit.
    """
    for part in parts:
        start = time.monotonic()
        if place.ends_at - start < LEAST_S:
            record["parts"].setdefault(part.name, {"status": "not run"})
            print(f"{part.name:<13} not run: the time is over", flush=True)
            continue
        for name in part.makes:
            shutil.rmtree(place.folder / name, ignore_errors=True)
        record["parts"][part.name] = {"status": "interrupted"}  # until it has ended
        write_json(path, record)
        log = place.folder / f"{part.name}.log"
        log.write_text("", encoding="utf-8")
        ends_at = min(place.ends_at, start + part.limit_s * limit_scale)
        outcome = run_part(part, replace(place, log=log, ends_at=ends_at))
        record["parts"][part.name] = outcome | {"seconds": round(time.monotonic() - start, 1), **about}
        write_json(path, record)
        show(part.name, record["parts"][part.name])
    write_json(path, record)


def run_part(part: Part, place: Workplace) -> Figures:
    """Run a part and return its status with its figures or its error."""
    try:
        return {"status": "ok", "figures": part.measure(place)}
    except PartEnded as end:
        return {"status": end.status, "error": _without_paths(str(end))}
    except Exception:
        return {"status": "failed", "error": _without_paths(traceback.format_exc() + place.tail())}


def _without_paths(text: str) -> str:
    """Replace this machine's folders in a text, because the file is committed."""
    for folder, name in ((Path(sys.prefix), "<python>"), (ROOT, "."), (Path.cwd(), "."), (Path.home(), "~")):
        text = text.replace(str(folder), name) if folder != folder.parent else text
    return text


def has_ended_well(part: Part, outcome: Figures, current: Figures, work: Path) -> bool:
    """Return True if a part succeeded with the same code and libraries, and the files that later parts need exist."""
    is_current = outcome.get("status") == "ok" and outcome.get("origin") == current
    return is_current and all((work / name).exists() for name in part.makes)


def show(name: str, part: Figures) -> None:
    lines = [f"{name:<13} {part['seconds']:6.1f} s  {part['status']}"]
    lines += [f"  {figure}: {format_value(value)}" for figure, value in part.get("figures", {}).items()]
    lines += [f"  {line}" for line in part.get("error", "").strip().splitlines()[-8:]]
    print(*lines, sep="\n", flush=True)


def format_value(value: Any) -> str:
    """Format a figure; for a list, format its first entry, or "-" if it is empty.

    >>> [format_value(value) for value in (0.123456, 1234567, ["flash_attention", "void kernel"], None)]
    ['0.1235', '1,234,567', 'flash_attention', '-']
    """
    if isinstance(value, list):
        return value[0] if value else "-"
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def results_table(results: Path) -> str:
    """Return docs/paper_scale.md's tables: the stored parts of every card."""
    records = [read_json(path) for path in sorted((results / FOLDER.name).glob("*.json"))]
    return "\n\n".join(map(_card_table, records)) or "not run"


def _card_table(record: Figures) -> str:
    """Return a row for every part of a card: outcome, seconds, figures or error, and what it ran on."""
    rows = []
    for name, part in record["parts"].items():
        figures = "; ".join(f"{figure} {format_value(value)}" for figure, value in part.get("figures", {}).items())
        reason = (part.get("error", "").strip().splitlines() or [""])[0 if part["status"] == "skipped" else -1][:160]
        run_on = [part[key] for key in ("date", "commit") if key in part]
        if "origin" in part and part["origin"]["versions"]:
            run_on.append(f"torch {part['origin']['versions']['torch']}")
        text = figures or reason or "-"
        rows.append([name, part["status"], format_value(part.get("seconds")), text, ", ".join(run_on) or "-"])
    return f"**{record['card']}**:\n\n{markdown.table(['part', 'outcome', 'seconds', 'figures', 'run on'], rows)}"


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    minutes = "time for all parts together (default: 8)"
    parser.add_argument("--minutes", type=in_range(float, 0.1), default=8.0, help=minutes)
    smallest = "take the smallest sizes, also without a GPU; figures go to runs/gpu_check"
    parser.add_argument("--short", action="store_true", help=smallest)
    names = [part.name for part in PARTS]
    parser.add_argument("--parts", nargs="+", choices=names, metavar="NAME", help="run only these parts")
    parser.add_argument("--again", action="store_true", help="repeat parts that have succeeded")
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    ends_at = time.monotonic() + 60 * arguments.minutes
    card, is_short = card_name(), arguments.short
    if not card and not is_short:
        raise UserError("torch finds no GPU; run this on a machine with one, or add --short for a CPU")
    slug = sub(r"\W+", "_", (card or "cpu").lower()) + "_short" * is_short
    path, work = (WORK if is_short else FOLDER) / f"{slug}.json", WORK / slug
    outcomes, current = (read_json(path, dict[str, dict | str]) or {}).get("parts", {}), origin()
    if all(part.get("origin") != current for part in outcomes.values()):
        shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    parts = {part.name: outcomes.get(part.name, {"status": "not run"}) for part in PARTS}
    record = {"card": card or "cpu", "parts": parts}
    about = {"date": time.strftime("%Y-%m-%d"), "commit": commit(), "origin": current}
    chosen = [part for part in PARTS if not arguments.parts or part.name in arguments.parts]
    kept = [part for part in chosen if has_ended_well(part, parts[part.name], current, work) and not arguments.again]
    for part in kept:
        print(f"{part.name:<13} kept", flush=True)
    place = Workplace(work.resolve(), work / "log", ends_at, is_short, bool(card))
    pending = [part for part in chosen if part not in kept]
    run_parts(pending, path, record, about, place, limit_scale=4.0 if is_short else 1.0)
    print(json.dumps({name: part["status"] for name, part in parts.items()}))
    print(f"written: {path}")
    failed = [part.name for part in chosen if parts[part.name]["status"] in ("failed", "time ran out")]
    if failed:
        raise UserError(f"failed or timed out: {', '.join(failed)}; see the errors in {path}, the logs in {work}")


if __name__ == "__main__":
    run_cli(main)
