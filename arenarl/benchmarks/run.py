"""`evaluate.py --benchmark NAME[=FILE] …`: items → responses → verdicts → figures, for every policy of the config.

Responses come from the rollout engine and its back ends, verdicts from the first of `judge.eval` through the one
client, with its store, budget and retries. Each response is in a file of its own,
runs/<run>/benchmarks/<benchmark>/<policy>/<item>-<repeat>.json; verdicts are read anew from the store, so nothing is
paid for twice. Aggregates go to results/<run>/benchmarks, with a page.
"""

import asyncio
import random
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object

from arenarl.benchmarks.benchmark import Benchmark
from arenarl.benchmarks.catalogue import chosen
from arenarl.benchmarks.page import in_words, write_page
from arenarl.benchmarks.prompts import find_prompts
from arenarl.benchmarks.responses import Records, Response, make_benchmark_engine, respond, settings_of
from arenarl.benchmarks.results import Task, entry_of
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
from arenarl.system.errors import UserError
from arenarl.system.progress import Bar, is_main_process, say
from arenarl.trajectory import Query


def run_benchmarks(
    config: Config, policies: dict[str, str | LLMConfig], wanted: Sequence[str], count: int | None, seed: int
) -> None:
    """Run what `wanted` names, NAME or NAME=FILE each, on all items or a sample of `count` drawn by `seed`;
    write aggregates and the page.

    Raises:
        UserError: a benchmark, its file, its judge or its tools cannot be had; before anything is generated.
    """
    judge = _judge_of(config)
    tasks = sorted((_task(*one, count, seed) for one in chosen(wanted)), key=lambda task: task.benchmark.has_search)
    folder, results = start_stage(config, "benchmarks", provenance), config.results_dir / "benchmarks"
    client = open_client(config.llms_of("benchmarks"), config.judge, f"{config.run_name}/benchmarks", folder)
    for task in tasks:
        say(_announced(task, len(policies)))

    @lru_cache(maxsize=1)  # a checkpoint is loaded once for all benchmarks with the same tools
    def engine_of(policy: str, has_search: bool):
        return make_benchmark_engine(config, policies[policy], has_search, client)

    entries: dict[str, dict[str, Any]] = {task.benchmark.name: {} for task in tasks}
    for policy in policies:
        for task in tasks:
            benchmark, title = task.benchmark, f"{task.benchmark.title}, {policy}"
            made_by = fingerprint(settings_of(config, benchmark.has_search), policies[policy], queries=())
            records = Records(folder / benchmark.name / policy, made_by)
            mine = own_share(_planned(task, config))
            respond(mine, records, partial(engine_of, policy, benchmark.has_search), title)
            _judge_all(mine, task, records, judge, client, title)
            responses = gather_object(list(mine))
            if is_main_process():
                entries[benchmark.name][policy] = entry = entry_of(task, responses, judge, config)
                _write(results, benchmark, entries[benchmark.name], config)
                say(f"{title}: {in_words(entry)}")
    if is_main_process():
        print(client.report())
        print(f"written: {results}/README.md, responses in {folder}")


def _judge_of(config: Config) -> JudgeConfig:
    judge = config.judge.eval[0]
    if judge.name != "llm":
        option = '--set "judge.eval=[{base: configs/judges/openai.yaml}]"'
        raise UserError(
            f"a benchmark is judged by an LLM, and judge.eval names {judge.name}; name one: "
            f"{option} (docs/benchmarks.md)"
        )
    return judge


def _task(benchmark: Benchmark, path: Path, count: int | None, seed: int) -> Task:
    items = benchmark.read(path)
    is_sample = count is not None and count < len(items)
    numbers = sorted(random.Random(seed).sample(range(len(items)), count)) if is_sample else range(len(items))
    prompts = find_prompts(benchmark.name, benchmark.editions, path)
    files = benchmark.files_of(path)
    data = {"files": [file.name for file in files], "sha256": hash_files(files)}
    return Task(
        benchmark,
        {number: items[number] for number in numbers},
        prompts,
        data,
        len(items),
        {"seed": seed} if is_sample else None,
    )


def _announced(task: Task, policies: int) -> str:
    benchmark = task.benchmark
    calls = len(task.items) * benchmark.repeats * benchmark.calls * policies
    return (
        f"{benchmark.title}: {len(task.items):,} of {task.total:,} items, at most {calls:,} judge "
        f"calls; prompts: {task.prompts.source}"
    )


def _planned(task: Task, config: Config) -> list[Response]:
    """All responses of a policy, not yet written. A seed goes by item and repeat,
    so that a sample is a part of the whole."""
    benchmark, temperature = task.benchmark, config.temperatures[config.evaluate.decodings[0]]
    turns = config.test_turns if benchmark.has_search else 1
    planned = []
    for number, item in task.items.items():
        query = Query(
            f"{benchmark.name}-{item.item_id}",
            "benchmark",
            benchmark.name,
            item.language,
            benchmark.query(item, task.prompts),
        )
        for repeat in range(benchmark.repeats):
            (attempt,) = attempts_at([query], temperature, config.seed, repeat, turns)
            planned.append(Response(number, repeat, item, attempt))
    return planned


def _judge_all(
    responses: Sequence[Response], task: Task, records: Records, judge: JudgeConfig, client: LLMClient, title: str
) -> None:
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
            records.write(response)
        bar.update()

    async def judge_all(bar: Bar) -> None:
        await asyncio.gather(*(judge_one(response, bar) for response in responses))

    with Bar(f"{title}: verdicts", len(responses)) as bar:
        asyncio.run(judge_all(bar))
    client.check()


def _write(results: Path, benchmark: Benchmark, entries: dict[str, Any], config: Config) -> None:
    summary = {
        "benchmark": benchmark.name,
        "title": benchmark.title,
        "policies": entries,
        "provenance": provenance(config),
    }
    write_json(results / f"{benchmark.name}.json", summary)
    write_page(results)
