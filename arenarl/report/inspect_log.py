"""An evaluation as a log of Inspect (inspect-ai), to be opened with `inspect view`: each trajectory's messages and
calls, scores, figures.

Written without inspect-ai, which reads it back (tests/report/test_inspect_log.py, with 0.3.285). One log holds all
checkpoints and decodings: a sample's id begins with them, its epoch is the number of the query's sample, and each has
an entry of its own among the results.
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
# by checkpoint and decoding: sample after sample, a case a query
Cases = Mapping[tuple[str, str], Sequence[Sequence[Case]]]


def write_inspect_log(
    path: Path, config: Config, cases: Cases, figures: dict[str, dict[str, Any]], provenance: dict[str, Any]
) -> None:
    """Write all trajectories of an evaluation as a log; `figures` are the summary's, by checkpoint and decoding."""
    samples = [
        _sample(f"{name} {decoding}", epoch, case)
        for (name, decoding), of_policy in cases.items()
        for epoch, of_sample in enumerate(of_policy, start=1)
        for case in of_sample
    ]
    ids = list(dict.fromkeys(sample["id"] for sample in samples))
    task = {"task": config.name, "task_id": config.run_name, "task_version": 0, "task_file": None,
            "task_attribs": {}, "task_args": {}}  # fmt: skip
    log = {
        "version": 2,
        "status": "success",
        "eval": task | {
            "eval_id": config.run_name,
            "run_id": config.run_name,
            "created": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
            "dataset": {"name": config.data.folder, "samples": len(ids), "sample_ids": ids},
            "model": f"arenarl/{config.run_name}",
            "model_args": {},
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
    """The figures that have a mean, as metrics of one scorer."""
    found = {key: value for key, value in figures.items() if isinstance(value, dict) and value.get("mean") is not None}
    metrics = {key: {"name": key, "value": value["mean"], "params": {}} for key, value in found.items()}
    return {"name": name, "scorer": "arenarl", "params": {}, "metrics": metrics}


def _sample(policy: str, epoch: int, case: Case) -> dict[str, Any]:
    messages = list(inspect_messages(case.trajectory.messages))
    said = next((message for message in reversed(messages) if message["role"] == "assistant"), None)
    about = {"answer": case.trajectory.answer, "explanation": None}
    ended = {"stop_reason": case.trajectory.stop_reason, "policy_tokens": case.trajectory.policy_tokens}
    choices = [{"message": said, "stop_reason": "stop" if case.trajectory.valid else "unknown"}] if said else []
    return {
        "id": f"{policy} {case.query.query_id}",
        "epoch": epoch,
        "input": case.query.query,
        "target": "",
        "messages": messages,
        "output": {"model": policy, "choices": choices},
        "scores": {name: {"value": value} | about for name, value in scores_of(case).items()},
        "metadata": {"subtask": case.query.subtask, **ended},
    }


def scores_of(case: Case) -> dict[str, float]:
    """By dimension what the judges gave the trajectory, mean over judges and orders, 0 to 10; whether it is valid; what
    is true of it. Nothing stands for a verdict that is missing, and nothing for a void trajectory."""
    if case.trajectory.is_void:
        return {}
    given: dict[str, list[float]] = {}
    for shown_first, shown_second in case.calls:
        for verdict, place in ((shown_first, 0), (shown_second, 1)):
            for name, score in verdict.dimensions[place].items() if verdict else ():
                given.setdefault(name, []).append(score)
    scores = {"valid": float(case.trajectory.valid)} | {name: fmean(values) for name, values in given.items()}
    if case.score is not None and not math.isnan(case.score):
        scores["score"] = case.score
    true = {"quality": case.quality} if case.truth else {}
    return scores | true | {name: float(value) for name, value in case.figures.items()}


def inspect_messages(messages: Sequence[Message]) -> Iterator[Message]:
    """Chat messages in Inspect's form: calls with ids, each result with the id of its call."""
    waiting: list[tuple[str, str]] = []  # (id, name) of calls without a result
    calls = 0
    for message in messages:
        if message["role"] == "tool":
            call_id, name = waiting.pop(0) if waiting else (None, None)
            yield {"role": "tool", "content": message["content"], "tool_call_id": call_id, "function": name}
        elif message["role"] == "assistant":
            functions = [call["function"] for call in message.get("tool_calls", [])]
            made = [_call(f"call_{number}", function) for number, function in enumerate(functions, start=calls)]
            calls += len(made)
            waiting = [(call["id"], call["function"]) for call in made]
            content = message["content"]
            if thought := message.get("reasoning_content"):
                content = [{"type": "reasoning", "reasoning": thought}, {"type": "text", "text": content}]
            reply = {"role": "assistant", "content": content, "source": "generate"}
            yield reply | ({"tool_calls": made} if made else {})
        else:
            yield {"role": message["role"], "content": message["content"]}


def _call(call_id: str, function: dict[str, Any]) -> dict[str, Any]:
    """Arguments that are no object, Inspect takes as an error of parsing."""
    given = function["arguments"]
    read = {"arguments": given} if isinstance(given, dict) else {"arguments": {}, "parse_error": str(given)}
    return {"id": call_id, "type": "function", "function": function["name"], **read}
