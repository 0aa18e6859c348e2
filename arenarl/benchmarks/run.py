"""`evaluate.py --benchmark NAME[=FILE] …`: items → responses → verdicts → figures, for every policy of the config.

The rollout engine makes responses; the first judge of `judge.eval` gives verdicts through the LLM client, with its
store, budget and retries. Each response has its own file, runs/<run>/benchmarks/<benchmark>/<policy>/
<item>-<repeat>.json. A restart reads verdicts from the store, so nothing is paid twice. Figures and a page go to
<results>/<run>/benchmarks; `results` is runs by default.
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
from arenarl.benchmarks.page import NOT_OFFICIAL, describe, write_page
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
from arenarl.system.user_input import home_path
from arenarl.trajectory import Query

_KINDS = WritingBench, HelloBench, LongBenchWrite, RACE, BrowseComp, BrowseCompZH, XBench, SimpleQA, WebWalkerQA
BENCHMARKS: dict[str, type[Benchmark]] = {kind.name: kind for kind in _KINDS}
EMBEDDED_SEARCH = "searched the embedded encyclopedia, not the web"


@dataclass(frozen=True)
class Task:
    """A benchmark with the items to run."""

    benchmark: Benchmark
    items: dict[int, Item]  # by number in the official file
    prompts: Prompts
    data: dict[str, Any]  # names and sha256 of the files
    total: int  # items in the files
    sample: dict[str, int] | None  # seed of the sample; None: all items


def run_benchmarks(
    config: Config, policies: dict[str, str | LLMConfig], wanted: Sequence[str], count: int | None, seed: int
) -> None:
    """Run the benchmarks `wanted`, each NAME or NAME=FILE, and write their figures and the page.

    `count` is the size of a random sample drawn with `seed`; None runs all items. Raises UserError, before the first
    response, if a benchmark, its file, its judge or its tools are missing.
    """
    judge = config.judge.eval[0]
    if judge.name != "llm":
        option = '--set "judge.eval=[{base: configs/judges/openai.yaml}]"'
        problem = f"a benchmark needs an LLM judge, but judge.eval names {judge.name}"
        raise UserError(f"{problem}; name one with {option} (docs/benchmarks.md)")
    tasks = [_task(*choice, count, seed) for choice in choose_benchmarks(wanted)]
    tasks.sort(key=lambda task: task.benchmark.has_search)
    folder, results = start_stage(config, "benchmarks", provenance), config.results_dir / "benchmarks"
    client = open_client(config.llms_of("benchmarks"), config.judge, f"{config.run_name}/benchmarks", folder)
    for task in tasks:
        calls = len(task.items) * task.benchmark.repeats * task.benchmark.calls * len(policies)
        items = f"{task.benchmark.title}: {len(task.items):,} of {task.total:,} items"
        say(f"{items}, at most {calls:,} judge calls; prompts: {task.prompts.source}")

    @lru_cache(maxsize=1)  # benchmarks with the same tools share a loaded checkpoint
    def engine_of(policy: str, has_search: bool):
        return make_benchmark_engine(config, policies[policy], has_search, client)

    entries: dict[str, dict[str, Any]] = {task.benchmark.name: {} for task in tasks}
    for policy in policies:
        for task in tasks:
            benchmark, title = task.benchmark, f"{task.benchmark.title}, {policy}"
            made_by = fingerprint(settings_of(config, benchmark.has_search), policies[policy], queries=())
            share = own_share(_plan_responses(task, config, folder / benchmark.name / policy, made_by))
            respond(share, partial(engine_of, policy, benchmark.has_search), title)
            _judge_all(share, task, judge, client, title)
            responses = gather_object(list(share))
            if is_main_process():
                entries[benchmark.name][policy] = entry = entry_of(task, responses, judge, config)
                summary = {"benchmark": benchmark.name, "title": benchmark.title, "policies": entries[benchmark.name]}
                write_json(results / f"{benchmark.name}.json", summary | {"provenance": provenance(config)})
                write_page(results)
                say(f"{title}: {describe(entry)}")
    if is_main_process():
        print(client.report())
        print(f"written: {results}/README.md, responses in {folder}")


def choose_benchmarks(wanted: Iterable[str]) -> list[tuple[Benchmark, Path]]:
    """Return the named benchmarks, each with its file.
    Raises UserError for a name that is unknown, repeated, or needs a file."""
    benchmarks: dict[str, tuple[Benchmark, Path]] = {}
    for text in wanted:
        name, _, file = text.partition("=")
        if name not in BENCHMARKS:
            choice = f"choose from {', '.join(BENCHMARKS)}{did_you_mean(name, BENCHMARKS)}"
            raise UserError(f"--benchmark: {name} is unknown; {choice}")
        if name in benchmarks:
            raise UserError(f"--benchmark: {name} is named twice; name it once")
        benchmark = BENCHMARKS[name]()
        try:
            path = Path(home_path(file)) if file else benchmark.default_path()
        except ValueError as error:
            raise UserError(f"--benchmark {text}: {error}") from error
        if path is None:
            raise UserError(f"--benchmark: {name} needs its file; write {name}=FILE, from {benchmark.source}")
        benchmarks[name] = benchmark, path
    return list(benchmarks.values())


def _task(benchmark: Benchmark, path: Path, count: int | None, seed: int) -> Task:
    items, files = benchmark.read(path), benchmark.files_of(path)
    is_sample = count is not None and count < len(items)
    numbers = sorted(random.Random(seed).sample(range(len(items)), count)) if is_sample else range(len(items))
    prompts = find_prompts(benchmark.name, benchmark.editions, path)
    data, sample = {"files": [file.name for file in files], "sha256": hash_files(files)}, {"seed": seed}
    drawn = {number: items[number] for number in numbers}
    return Task(benchmark, drawn, prompts, data, len(items), sample if is_sample else None)


def _plan_responses(task: Task, config: Config, folder: Path, made_by: str) -> list[Response]:
    """Return a policy's responses without trajectories. Seeds depend on item and repeat alone, so a sample reuses the
    responses of the whole benchmark."""
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
    """Set the verdicts of all responses that are not void; a failed verdict is None.
    Raises RunStopped if the client stops the run, for example because its budget is spent."""
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
        if not client.stop_reason:  # after a stop, a missing verdict is not the judge's failure
            response.write()
        bar.update()

    async def judge_all(bar: Bar) -> None:
        await asyncio.gather(*(judge_one(response, bar) for response in responses))

    with Bar(f"{title}: verdicts", len(responses)) as bar:
        asyncio.run(judge_all(bar))
    client.check()


def entry_of(task: Task, responses: Sequence[Response], judge: JudgeConfig, config: Config) -> dict[str, Any]:
    """Return the figures of one policy, with the items, judge and settings behind them.

    Responses without a verdict count as failed, or as void after a tool crash or without room for the prompt. Figures
    leave out both.
    `items` counts the items with at least one verdict."""
    verdicts = defaultdict(list)
    for response in sorted(responses, key=lambda response: (response.number, response.repeat)):
        if response.verdict is not None:
            verdicts[response.number].append(response.verdict)
    scored = [Scored(task.items[number], of_item) for number, of_item in verdicts.items()]
    items = len({response.number for response in responses})
    ended = [response for response in responses if not response.trajectory.is_void]
    void = len(responses) - len(ended)
    return {
        "figures": task.benchmark.figures(scored, Intervals(config.evaluate.bootstrap, config.seed)),
        "items": len(scored),
        "of_items": task.total,
        "sample": task.sample,
        "repeats": task.benchmark.repeats,
        "failed": sum(response.verdict is None for response in ended),
        "void": void,
        "empty": sum(not response.text.strip() for response in ended),
        "cut": sum(response.trajectory.stop_reason == "max_tokens" for response in responses),
        "judge": {"model": judge.model, "base_url": judge.base_url, "temperature": judge.temperature},
        "official_judge": {"models": list(task.benchmark.judges), "temperature": task.benchmark.judge_temperature},
        "prompt": {"hash": task.prompts.hash, "source": task.prompts.source},
        "decoding": config.evaluate.decodings[0],
        "data": task.data,
        "search": config.environment.search.engine if task.benchmark.has_search else None,
        "labels": _labels(task, judge, config, len(scored), items),
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
