"""The benchmarks by name, and what `--benchmark NAME[=FILE]` means."""

from collections.abc import Iterable
from pathlib import Path

from arenarl.benchmarks.benchmark import Benchmark
from arenarl.benchmarks.browsecomp import BrowseComp, BrowseCompZH
from arenarl.benchmarks.hellobench import HelloBench
from arenarl.benchmarks.longbench_write import LongBenchWrite
from arenarl.benchmarks.race import RACE
from arenarl.benchmarks.simpleqa import SimpleQA
from arenarl.benchmarks.webwalkerqa import WebWalkerQA
from arenarl.benchmarks.writingbench import WritingBench
from arenarl.benchmarks.xbench import XBench
from arenarl.system.errors import UserError, did_you_mean

BENCHMARKS: dict[str, type[Benchmark]] = {
    one.name: one for one in (
        WritingBench, HelloBench, LongBenchWrite, RACE, BrowseComp, BrowseCompZH, XBench, SimpleQA, WebWalkerQA,
    )
}  # fmt: skip


def chosen(wanted: Iterable[str]) -> list[tuple[Benchmark, Path]]:
    """The benchmarks that these name, each with its file.
    Raises UserError for a name that is none, stands twice or needs a file."""
    found: dict[str, tuple[Benchmark, Path]] = {}
    for text in wanted:
        name, _, file = text.partition("=")
        if name not in BENCHMARKS:
            raise UserError(
                f"--benchmark: there is no {name}; choose {', '.join(BENCHMARKS)}{did_you_mean(name, BENCHMARKS)}"
            )
        if name in found:
            raise UserError(f"--benchmark: {name} stands twice; name each once")
        benchmark = BENCHMARKS[name]()
        path = Path(file) if file else benchmark.default_path()
        if path is None:
            raise UserError(f"--benchmark: {name} needs its file: {name}=FILE; it comes from {benchmark.source}")
        found[name] = benchmark, path
    return list(found.values())
