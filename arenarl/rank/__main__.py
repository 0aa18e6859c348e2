"""Rank the candidates of each prompt in a file with a judge, without training.

    arenarl rank candidates.jsonl --judge openai --rubric "true and short" --out ranked.jsonl

Candidates are lines {"prompt": …, "candidates": [text, …]}; both texts can be chats. The ranks come line by line in the
same order. After a kill, the same command continues, and pays for no call twice.
"""

import argparse
import asyncio
import os
from collections import deque
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

from arenarl.config.command_line import in_range
from arenarl.plan.estimate import CountingClient, describe_estimate, take_times
from arenarl.rank.files import (
    Candidates,
    Group,
    RankFile,
    best_candidates,
    preference_pairs,
    read_candidates,
    read_ranks,
    to_record,
)  # fmt: skip
from arenarl.rank.ranker import RankedGroup, Ranker
from arenarl.system.atomic_files import json_hash, write_lines
from arenarl.system.errors import UserError, run_cli
from arenarl.system.progress import Bar
from arenarl.system.yaml_text import read_yaml
from arenarl.tournament.topologies import paper_calls
from arenarl.trajectory import storable

_ESTIMATED = 50  # groups whose prompts are built for the estimate
_SHOWN = 5


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("arenarl rank", description=__doc__.split("\n\n")[0])
    parser.add_argument("candidates", type=Path, help="JSONL: prompt or messages, and candidates")
    parser.add_argument("--out", type=Path, help="JSONL of ranks; needed unless --estimate")
    parser.add_argument("--judge", default="openai", help="a name in configs/judges, or a YAML of that form")
    parser.add_argument("--rubric", help="the criteria in words, or a YAML as in configs/rubrics")
    parser.add_argument("--language", default="en", choices=("en", "zh"), help="language of the judge's prompt")
    parser.add_argument("--topology", default="seeded_single_elimination", help="match schedule: docs/tournament.md")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="params",
                        help="a parameter of the topology, such as matches=3n; may be repeated")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--concurrency", type=in_range(int, 1), default=64, help="calls at the same time")
    parser.add_argument(
        "--max-calls", type=in_range(int, 1), help="budget in calls, restarts included; messages name judge.max_calls"
    )
    parser.add_argument(
        "--max-cost",
        type=in_range(float, 0),
        help="budget by the judge's prices, restarts included; messages name judge.max_cost",
    )
    default = signature(Ranker).parameters["max_failure_share"].default
    failures = f"stop above this share of failed verdicts, from 0 to 1 (default: {default})"
    parser.add_argument("--max-failure-share", type=in_range(float, 0, 1), default=default, help=failures)
    parser.add_argument("--store", default="runs/replies.sqlite",
                        help="file or PostgreSQL URL that keeps every reply; messages name judge.store")  # fmt: skip
    parser.add_argument("--estimate", action="store_true", help="only print calls, tokens and cost; needs no key")
    parser.add_argument("--skip-malformed", action="store_true", help="leave malformed lines out")
    parser.add_argument("--pairs", type=Path, help="also write preference pairs in TRL's form, for DPO")
    parser.add_argument("--best", type=Path, help="also write the best candidates, as prompt and completion")
    parser.add_argument("--report", type=Path, help="also write a page with all brackets and verdicts")
    arguments = parser.parse_args(words)
    if not arguments.out and not arguments.estimate:
        parser.error("--out is missing: name the file for the ranks, or take --estimate")
    if arguments.pairs and arguments.topology == "group_stage":
        parser.error("--pairs needs matches of two candidates, which group_stage lacks; choose another --topology")
    _refuse_shared_files(arguments)
    _rank(arguments)


def _refuse_shared_files(arguments: argparse.Namespace) -> None:
    """Raise UserError if two options name one file: a result would replace an input, the store or another result."""
    named = {"--judge": arguments.judge, "--rubric": arguments.rubric}
    files = {"candidates": arguments.candidates}
    # else a name of configs/judges, or the criteria in words
    files |= {option: value for option, value in named.items() if value and os.path.isfile(value)}
    files |= {f"--{name}": getattr(arguments, name) for name in ("store", "out", "pairs", "best", "report")}
    option_of: dict[Path, str] = {}
    for option, path in files.items():
        if path and (other := option_of.setdefault(Path(path).resolve(), option)) != option:
            raise UserError(f"{option} {path} is also the file of {other}, which would be lost; name another file")


def _rank(arguments: argparse.Namespace) -> None:
    params = dict(map(_read_param, arguments.params))
    candidates = read_candidates(arguments.candidates, arguments.language, arguments.skip_malformed)
    for line, problem in list(candidates.skipped.items())[:_SHOWN]:
        print(f"skipped line {line}: {problem}")
    if candidates.skipped:
        print(f"skipped {len(candidates.skipped):,} malformed lines in all")
    options = {"rubric": arguments.rubric, "language": arguments.language, "topology": arguments.topology}
    options |= {"seed": arguments.seed, **params}
    limits = {"concurrency": arguments.concurrency, "store": arguments.store}
    limits |= {"max_calls": arguments.max_calls, "max_cost": arguments.max_cost}
    limits |= {"max_failure_share": arguments.max_failure_share}
    counting = Ranker(arguments.judge, client=CountingClient(), **options)  # needs neither key nor store
    for line in estimate_lines(counting, candidates, arguments.max_cost):
        print(line, flush=True)
    if arguments.estimate:
        return
    run = f"rank-{json_hash([candidates.digest, counting.settings])[:12]}"  # the budget's name, also after a kill
    ranker = Ranker(arguments.judge, run=run, **options, **limits)
    out = RankFile(arguments.out, run)
    try:
        asyncio.run(_rank_all(ranker, candidates, out))
    finally:
        if ranker.client:
            ranker.client.close()
            print(ranker.client.report(), flush=True)
        out.close()  # last, because it fails again on a full disk
    _conclude(arguments, candidates, ranker)


async def _rank_all(ranker: Ranker, candidates: Candidates, out: RankFile) -> None:
    """Rank the groups that `out` lacks, several at a time, and write them in order."""
    waiting: deque[tuple[Group, asyncio.Task]] = deque()
    bar = Bar("rank", candidates.count, out.done)

    async def write_first() -> None:
        group, task = waiting.popleft()
        out.write(to_record(group, await task, out.run))
        bar.update()

    try:
        for group in candidates:
            if group.line <= out.last_line:
                continue
            waiting.append((group, asyncio.create_task(ranker.rank(group.prompt, group.candidates))))
            if len(waiting) >= 2 * ranker.concurrency:
                await write_first()
        while waiting:
            await write_first()
    finally:
        for _, task in waiting:
            task.cancel()
        await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)
        bar.close()


def estimate_lines(ranker: Ranker, candidates: Candidates, max_cost: float | None) -> list[str]:
    """Return the estimate of calls, tokens and cost as a line, and a warning if it exceeds `max_cost`.

    The client of `ranker` is a `CountingClient`. Prompts are built for at most `_ESTIMATED` groups, spread over the
    file, and scaled by the number of groups.
    """
    if not ranker.client:
        return [f"estimate: none, because {ranker.judge_name} is your own class and may call anything"]
    every = -(-candidates.count // _ESTIMATED)
    sample = [group for number, group in enumerate(candidates) if number % every == 0]
    client, usages = ranker.client, []
    for is_most in (False, True):
        client.is_most = is_most
        ranked = asyncio.run(ranker.rank_all([(group.prompt, group.candidates) for group in sample]))
        more = sum(_most_calls(ranker, group) for group in ranked) / max(1, client.usage.calls) if is_most else 1.0
        usages.append(take_times(client, more * candidates.count / len(sample)))
    return describe_estimate("estimate", "this ranking", *usages, [ranker.judge.config], "--max-cost", max_cost)


def _most_calls(ranker: Ranker, ranked: RankedGroup) -> int:
    """Return the maximum calls of a group's ranking, whatever the judge replies."""
    entrants = {entrant for match in ranked.matches for entrant in (match.i, match.j)}  # identical ones enter once
    both_orders = paper_calls(ranker.topology, len(entrants)) or 0
    return max(ranked.calls, both_orders if ranker.params.get("bidirectional", True) else both_orders // 2)


def _conclude(arguments: argparse.Namespace, candidates: Candidates, ranker: Ranker) -> None:
    """Print what is missing, and write the files that follow from the ranks."""

    def pairs() -> Iterator[tuple[Group, dict[str, Any]]]:
        return zip(candidates, read_ranks(arguments.out), strict=True)

    calls = failed = 0
    unranked = []
    for _, record in pairs():
        calls, failed = calls + record["calls"], failed + record["failed_calls"]
        unranked += [record["line"]] * (None in record["ranks"])
    print(f"written: {arguments.out}, {candidates.count:,} groups, {calls:,} verdicts, {failed:,} of them missing")
    if unranked:
        lines = ", ".join(map(str, unranked[:_SHOWN])) + (", …" if len(unranked) > _SHOWN else "")
        print(f"{len(unranked):,} groups have candidates without a rank (null), because a verdict is missing or the "
              f"topology gives them no match: lines {lines}. To repeat calls without a reply, remove {arguments.out} "
              "and rerun; to repeat unreadable replies, which the store keeps, also name another --store")  # fmt: skip
    for path, lines in ((arguments.pairs, preference_pairs), (arguments.best, best_candidates)):
        if path:
            print(f"written: {path}, {write_lines(path, lines(pairs())):,} lines")
    if arguments.report:
        from arenarl.rank.page import write_page

        title = storable(arguments.candidates.name)
        write_page(arguments.report, title, pairs(), arguments.language, ranker.judge_name, arguments.topology)
        print(f"written: {arguments.report}")
    if calls and calls == failed:
        raise UserError("every verdict is missing, so no candidate has a rank; the lines above name the last failure")


def _read_param(text: str) -> tuple[str, Any]:
    key, is_assignment, value = text.partition("=")
    if key in signature(Ranker).parameters:
        raise UserError(f"--set {text}: {key} is not a parameter of a topology; --help lists the command's options")
    try:
        if is_assignment and key:
            return key, read_yaml(value)
    except ValueError:
        pass
    raise UserError(f"--set {text}: write it as key=value")


if __name__ == "__main__":
    run_cli(main)
