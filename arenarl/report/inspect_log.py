"""An evaluation as a log of Inspect (inspect-ai), for `inspect view`: messages, calls, scores and figures.

The log is written without inspect-ai; tests/report/test_inspect_log.py reads it back with version 0.3.285. One log has
all checkpoints and decodings: they begin a sample's id, and each has an entry among the results. The epoch is the
number of the query's sample.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from arenarl.config.schema import Config
from arenarl.evaluation.evaluation import Case
from arenarl.system.atomic_files import to_json, write_text

Message = dict[str, Any]
# (checkpoint, decoding) → a list per sample, with one case per query
Cases = Mapping[tuple[str, str], Sequence[Sequence[Case]]]


def write_inspect_log(
    path: Path, config: Config, cases: Cases, figures: dict[str, dict[str, Any]], provenance: dict[str, Any]
) -> None:
    """Write all trajectories of an evaluation as a log; `figures` are the summary's, by checkpoint and decoding."""
    samples = [
        _sample(f"{name} {decoding}", epoch, case)
        for (name, decoding), policy_cases in cases.items()
        for epoch, sample_cases in enumerate(policy_cases, start=1)
        for case in sample_cases
    ]
    ids = list(dict.fromkeys(sample["id"] for sample in samples))
    run, created = config.run_name, time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    log = {
        "version": 2,
        "status": "success",
        "eval": {
            "task": config.name, "task_id": run, "task_version": 0, "task_file": None, "task_attribs": {},
            "task_args": {}, "eval_id": run, "run_id": run, "created": created,
            "dataset": {"name": config.data.folder, "samples": len(ids), "sample_ids": ids},
            "model": f"arenarl/{run}", "model_args": {},
            "config": {"epochs": max((sample["epoch"] for sample in samples), default=1)},
            "metadata": provenance,
        },
        "plan": {"name": "rollout", "steps": [], "config": {}},
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(samples),
            "scores": [_results(f"{name} {decoding}", figures[name][decoding]) for name, decoding in cases],
        },
        "samples": samples,
    }  # fmt: skip
    write_text(path, to_json(log))


def _results(name: str, figures: dict[str, Any]) -> dict[str, Any]:
    """Return the figures with a mean, as metrics of one scorer."""
    means = {key: value["mean"] for key, value in figures.items() if isinstance(value, dict) and "mean" in value}
    metrics = {key: {"name": key, "value": mean, "params": {}} for key, mean in means.items() if mean is not None}
    return {"name": name, "scorer": "arenarl", "params": {}, "metrics": metrics}


def _sample(policy: str, epoch: int, case: Case) -> dict[str, Any]:
    messages = list(inspect_messages(case.trajectory.messages))
    last = next((message for message in reversed(messages) if message["role"] == "assistant"), None)
    answer = {"answer": case.trajectory.answer, "explanation": None}
    end = {"stop_reason": case.trajectory.stop_reason, "policy_tokens": case.trajectory.policy_tokens}
    choices = [{"message": last, "stop_reason": "stop" if case.trajectory.valid else "unknown"}] if last else []
    return {
        "id": f"{policy} {case.query.query_id}",
        "epoch": epoch,
        "input": case.query.query,
        "target": "",
        "messages": messages,
        "output": {"model": policy, "choices": choices},
        "scores": {name: {"value": value} | answer for name, value in scores_of(case).items()},
        "metadata": {"subtask": case.query.subtask, **end},
    }


def scores_of(case: Case) -> dict[str, float]:
    """Return the trajectory's scores: per dimension the mean over judges and orders (0 to 10), validity, true figures.
    A missing verdict does not count. A void trajectory has no scores."""
    if case.trajectory.is_void:
        return {}
    by_dimension: dict[str, list[float]] = {}
    for pair in case.calls:
        for place, verdict in enumerate(pair):  # the trajectory is shown first in the first call, second in the second
            for name, score in verdict.dimensions[place].items() if verdict else ():
                by_dimension.setdefault(name, []).append(score)
    scores = {"valid": float(case.trajectory.valid)} | {name: fmean(values) for name, values in by_dimension.items()}
    if case.score is not None and not math.isnan(case.score):
        scores["score"] = case.score
    if case.truth:
        scores["quality"] = case.quality
    return scores | {name: float(value) for name, value in case.figures.items()}


def inspect_messages(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield chat messages in Inspect's format: calls have ids, and each result has the id of its call."""
    open_calls: list[tuple[str, str]] = []  # (id, name) of calls without a result
    count = 0
    for message in messages:
        if message["role"] == "tool":
            call_id, name = open_calls.pop(0) if open_calls else (None, None)
            yield {"role": "tool", "content": message["content"], "tool_call_id": call_id, "function": name}
        elif message["role"] == "assistant":
            functions = [call["function"] for call in message.get("tool_calls", [])]
            calls = [_call(f"call_{number}", function) for number, function in enumerate(functions, start=count)]
            count += len(calls)
            open_calls = [(call["id"], call["function"]) for call in calls]
            content = message["content"]
            if thought := message.get("reasoning_content"):
                content = [{"type": "reasoning", "reasoning": thought}, {"type": "text", "text": content}]
            reply = {"role": "assistant", "content": content, "source": "generate"}
            yield reply | ({"tool_calls": calls} if calls else {})
        else:
            yield {"role": message["role"], "content": message["content"]}


def _call(call_id: str, function: dict[str, Any]) -> dict[str, Any]:
    """Return a call in Inspect's format; arguments that are not an object become a parse error."""
    arguments, error = function["arguments"], {}
    if not isinstance(arguments, dict):
        arguments, error = {}, {"parse_error": str(arguments)}
    return {"id": call_id, "type": "function", "function": function["name"], "arguments": arguments} | error
