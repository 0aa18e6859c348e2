"""Verdicts → results/<run>/benchmarks/<benchmark>.json:
figures by policy, each with judge, prompt hash, item count and what it is not.

Neither items nor responses are in it: they stay with the user, under runs/.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arenarl.benchmarks.benchmark import Benchmark, Intervals, Item, Scored
from arenarl.benchmarks.page import NOT_OFFICIAL
from arenarl.benchmarks.prompts import Prompts
from arenarl.benchmarks.responses import Response
from arenarl.config.schema import Config, JudgeConfig

EMBEDDED_SEARCH = "searched the embedded encyclopedia, not the web"


@dataclass(frozen=True)
class Task:
    """A benchmark with the items to run, by their numbers in the official file;
    `sample` says how they were drawn from `total`."""

    benchmark: Benchmark
    items: dict[int, Item]
    prompts: Prompts
    data: dict[str, Any]  # the files' names and their sha256
    total: int
    sample: dict[str, int] | None


def entry_of(task: Task, responses: Sequence[Response], judge: JudgeConfig, config: Config) -> dict[str, Any]:
    """What one policy's figures are, of what, by whom. A response without a verdict is counted as failed, a tool's
    crash as void: neither is in a figure, and the items that have no other are not in `items`."""
    of_item = defaultdict(list)
    for response in sorted(responses, key=lambda one: (one.number, one.repeat)):
        of_item[response.number].append(response)
    scored = [
        Scored(task.items[number], [one.verdict for one in ones if one.verdict is not None])
        for number, ones in of_item.items()
    ]
    scored = [one for one in scored if one.verdicts]
    void = sum(one.trajectory.is_void for one in responses)
    return {
        "figures": task.benchmark.figures(scored, Intervals(config.evaluate.bootstrap, config.seed)),
        "items": len(scored),
        "of_items": task.total,
        "sample": task.sample,
        "repeats": task.benchmark.repeats,
        "failed": sum(one.verdict is None for one in responses) - void,
        "void": void,
        "empty": sum(not one.text.strip() for one in responses) - void,
        "cut": sum(one.trajectory.stop_reason == "max_tokens" for one in responses),
        "judge": {"model": judge.model, "base_url": judge.base_url, "temperature": judge.temperature},
        "official_judge": {"models": list(task.benchmark.judges), "temperature": task.benchmark.judge_temperature},
        "prompt": {"hash": task.prompts.hash, "source": task.prompts.source},
        "decoding": config.evaluate.decodings[0],
        "data": task.data,
        "search": config.environment.search.engine if task.benchmark.has_search else None,
        "labels": _labels(task, judge, config, len(scored), len(of_item)),
    }


def _labels(task: Task, judge: JudgeConfig, config: Config, scored: int, items: int) -> list[str]:
    """What a reader must know who compares the score with a published one."""
    benchmark, labels = task.benchmark, []
    if not benchmark.is_official_judge(judge.model):
        labels.append(f"{NOT_OFFICIAL} (judge {judge.model}; official: {' or '.join(benchmark.judges)})")
    if benchmark.judge_temperature not in (None, judge.temperature):
        own = "the model's own" if judge.temperature is None else judge.temperature
        labels.append(f"judge temperature {own}, official {benchmark.judge_temperature}")
    if not task.prompts.is_official:
        labels.append("not the official prompt")
    if task.sample:
        labels.append(f"a sample of {items:,} of {task.total:,} items, seed {task.sample['seed']}")
    if task.total != benchmark.size:
        labels.append(f"a file of {task.total:,} items; official: {benchmark.size:,}")
    if scored < items:
        labels.append(f"{items - scored:,} of {items:,} items have no verdict and are in no figure")
    if benchmark.has_search and config.environment.search.engine == "corpus" and ":" not in config.environment.name:
        labels.append(EMBEDDED_SEARCH)
    return labels
