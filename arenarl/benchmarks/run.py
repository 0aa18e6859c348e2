"""`evaluate.py --benchmark NAME[=FILE] …`: items → responses → verdicts → figures, for every policy of the config.

Responses come from the rollout engine and its back ends, verdicts from the first of `judge.eval` through the one
client, with its store, budget and retries. Each response is in a file of its own,
runs/<run>/benchmarks/<benchmark>/<policy>/<item>-<repeat>.json; verdicts are read anew from the store, so nothing is
paid for twice. Aggregates go to results/<run>/benchmarks, with a page; items and responses stay with the user.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object

from arenarl.benchmarks.benchmark import Benchmark, Intervals, Item, Scored
from arenarl.benchmarks.page import NOT_OFFICIAL, in_words, write_page
from arenarl.benchmarks.prompts import Prompts, find_prompts
from arenarl.benchmarks.questions import BrowseComp, BrowseCompZH, SimpleQA, WebWalkerQA, XBench
from arenarl.benchmarks.race import RACE
from arenarl.benchmarks.responses import Response, make_benchmark_engine, respond, settings_of
from arenarl.benchmarks.writing import HelloBench, LongBenchWrite, WritingBench
from arenarl.config.schema import Config, JudgeConfig, LLMConfig
from arenarl.evaluation.parts import fingerprint
from arenarl.llm.client import LLMClient, open_client
from arenarl.llm.json_reply import parse_reply
from arenarl.llm.prompts import prompt_texts
from arenarl.report.provenance import provenance
from arenarl.rollout.engine import attempts_at
from arenarl.run.processes import own_share
from arenarl.run.stage import start_stage
from arenarl.system.atomic_files import hash_files, write_json
from arenarl.system.errors import UserError, did_you_mean
from arenarl.system.progress import Bar, is_main_process, say
from arenarl.trajectory import Query

BENCHMARKS: dict[str, type[Benchmark]] = {
    one.name: one for one in (
        WritingBench, HelloBench, LongBenchWrite, RACE, BrowseComp, BrowseCompZH, XBench, SimpleQA, WebWalkerQA,
    )
}  # fmt: skip
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


def run_benchmarks(
    config: Config, policies: dict[str, str | LLMConfig], wanted: Sequence[str], count: int | None, seed: int
) -> None:
    """Run what `wanted` names, NAME or NAME=FILE each, on all items or a sample of `count` drawn by `seed`;
    write aggregates and the page.
    Raises UserError if a benchmark, its file, its judge or its tools cannot be had; before anything is generated."""
    judge = config.judge.eval[0]
    if judge.name != "llm":
        option = '--set "judge.eval=[{base: configs/judges/openai.yaml}]"'
        raise UserError(
            f"a benchmark is judged by an LLM, and judge.eval names {judge.name}; name one: "
            f"{option} (docs/benchmarks.md)"
        )
    tasks = sorted((_task(*one, count, seed) for one in chosen(wanted)), key=lambda task: task.benchmark.has_search)
    folder, results = start_stage(config, "benchmarks", provenance), config.results_dir / "benchmarks"
    client = open_client(config.llms_of("benchmarks"), config.judge, f"{config.run_name}/benchmarks", folder)
    for task in tasks:
        calls = len(task.items) * task.benchmark.repeats * task.benchmark.calls * len(policies)
        items = f"{task.benchmark.title}: {len(task.items):,} of {task.total:,} items"
        say(f"{items}, at most {calls:,} judge calls; prompts: {task.prompts.source}")

    @lru_cache(maxsize=1)  # a checkpoint is loaded once for all benchmarks with the same tools
    def engine_of(policy: str, has_search: bool):
        return make_benchmark_engine(config, policies[policy], has_search, client)

    entries: dict[str, dict[str, Any]] = {task.benchmark.name: {} for task in tasks}
    for policy in policies:
        for task in tasks:
            benchmark, title = task.benchmark, f"{task.benchmark.title}, {policy}"
            made_by = fingerprint(settings_of(config, benchmark.has_search), policies[policy], queries=())
            mine = own_share(_planned(task, config, folder / benchmark.name / policy, made_by))
            respond(mine, partial(engine_of, policy, benchmark.has_search), title)
            _judge_all(mine, task, judge, client, title)
            responses = gather_object(list(mine))
            if is_main_process():
                of_policies = entries[benchmark.name]
                of_policies[policy] = entry = entry_of(task, responses, judge, config)
                summary = {"benchmark": benchmark.name, "title": benchmark.title, "policies": of_policies}
                write_json(results / f"{benchmark.name}.json", summary | {"provenance": provenance(config)})
                write_page(results)
                say(f"{title}: {in_words(entry)}")
    if is_main_process():
        print(client.report())
        print(f"written: {results}/README.md, responses in {folder}")


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


def _task(benchmark: Benchmark, path: Path, count: int | None, seed: int) -> Task:
    items, files = benchmark.read(path), benchmark.files_of(path)
    is_sample = count is not None and count < len(items)
    numbers = sorted(random.Random(seed).sample(range(len(items)), count)) if is_sample else range(len(items))
    chosen_items = {number: items[number] for number in numbers}
    prompts = find_prompts(benchmark.name, benchmark.editions, path)
    data = {"files": [file.name for file in files], "sha256": hash_files(files)}
    return Task(benchmark, chosen_items, prompts, data, len(items), {"seed": seed} if is_sample else None)


def _planned(task: Task, config: Config, folder: Path, made_by: str) -> list[Response]:
    """All responses of a policy, not yet written. A seed goes by item and repeat,
    so that a sample is a part of the whole."""
    benchmark, temperature = task.benchmark, config.temperatures[config.evaluate.decodings[0]]
    turns = config.test_turns if benchmark.has_search else 1
    planned = []
    for number, item in task.items.items():
        query_id, text = f"{benchmark.name}-{item.item_id}", benchmark.query(item, task.prompts)
        query = Query(query_id, "benchmark", benchmark.name, item.language, text)
        for repeat in range(benchmark.repeats):
            (attempt,) = attempts_at([query], temperature, config.seed, repeat, turns)
            planned.append(Response(number, repeat, item, attempt, folder, made_by))
    return planned


def _judge_all(responses: Sequence[Response], task: Task, judge: JudgeConfig, client: LLMClient, title: str) -> None:
    """Give each that is not void its verdict, or None where none could be had.
    Raises RunStopped once the client must stop."""
    again = prompt_texts("benchmarks", "en")["again"]

    async def judge_one(response: Response, bar: Bar) -> None:
        if not response.trajectory.is_void:
            about = f"{response.attempt.query.query_id}-{response.repeat}"

            def ask(messages, read):
                if isinstance(read, type) and not task.benchmark.is_official_judge(judge.model):
                    return client.ask(judge, messages, read, again, response.repeat, about)
                read = partial(parse_reply, reply_type=read) if isinstance(read, type) else read
                return client.ask_text(judge, messages, read, again, response.repeat, about)

            response.verdict = await task.benchmark.judge(response.item, response.text, task.prompts, ask)
        if not client.stop_reason:  # else a missing verdict says nothing
            response.write()
        bar.update()

    async def judge_all(bar: Bar) -> None:
        await asyncio.gather(*(judge_one(response, bar) for response in responses))

    with Bar(f"{title}: verdicts", len(responses)) as bar:
        asyncio.run(judge_all(bar))
    client.check()


def entry_of(task: Task, responses: Sequence[Response], judge: JudgeConfig, config: Config) -> dict[str, Any]:
    """Return the figures of one policy, with the items, judge and settings behind them.

    Responses without a verdict count as failed, tool crashes as void. Figures leave out both, and `items` leaves out
    items that have nothing else."""
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
    """Return labels for what differs from the official setting of published scores."""
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
