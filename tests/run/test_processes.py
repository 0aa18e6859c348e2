"""Several real processes over gloo: they train like one process, with DDP and ZeRO-3, and survive a kill.

The first half runs tests/support/replay.py; the second half starts the scripts as a user does.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys

import psutil
import pytest
import torch
from replay import TURNS
from safetensors.torch import load_file
from scripts import ENVIRONMENT, ROOT, differ, ends, read, run, run_well, start, weights, zero_3

from arenarl.domains.travel.teacher import Teacher
from arenarl.training.sft_data import IGNORED, tokenize
from arenarl.trajectory import prompt_messages, read_jsonl, read_turns, write_jsonl

pytestmark = pytest.mark.slow(seconds=150)  # all tests together

# AdamW moves a weight by up to 1e-3 per step here; where a gradient is almost 0, its rounding errors decide how far
TOLERANCE, SHARE_BEYOND_1E6 = 5e-5, 1e-3


def recorded(taught, tokenizer, teacher):
    """Yield two steps of four groups: four teacher trajectories of mixed skill per query, with a rollout's tokens."""
    for index, one in enumerate(taught):
        for row in range(4):
            trajectory = teacher.solve(one.query, random.Random(7 * index + row), 0.2 + 0.2 * row)
            encoded = tokenize(tokenizer, trajectory.messages, None, 2048)
            prompt = prompt_messages(one.query)
            start = len(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False))
            own = [int(label != IGNORED) for label in encoded["labels"]]
            end = max(position for position, is_own in enumerate(own) if is_own) + 1
            turns = read_turns(trajectory.messages)
            calls = sum(len(turn.tool_calls) for turn in turns)
            trajectory.meta = {"turns": len(turns), "tool_calls": calls, "tool_errors": row % 2}
            trajectory.stop_reason = "max_turns" if (index + row) % 5 == 0 else "answer"
            ids = encoded["input_ids"]
            trajectory.prompt_ids, trajectory.completion_ids = ids[:start], ids[start:end]
            trajectory.policy_mask_T = own[start:end]
            yield vars(trajectory)


def replay(folder, layout, processes, deepspeed=None):
    launcher = ["-m", "arenarl.run.launch", "--nproc_per_node", str(processes)] if processes > 1 else []
    words = [str(ROOT / "tests" / "support" / "replay.py"), str(folder), layout, *([deepspeed] if deepspeed else [])]
    command, environment = [sys.executable, *launcher, *words], os.environ | ENVIRONMENT
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def replayed(taught, tokenizer, policy_path, world, compact, tmp_path_factory):
    """The folder in which replay.py ran on one process, on two, and on two under ZeRO-3 with checkpointing."""
    folder = tmp_path_factory.mktemp("replayed")
    chosen = taught[::23][:8]
    shutil.copytree(policy_path, folder / "policy")
    write_jsonl(folder / "queries.jsonl", [one.query for one in chosen])
    write_jsonl(folder / "recorded.jsonl", recorded(chosen, tokenizer, Teacher(world, compact)))
    replay(folder, "one", 1)
    replay(folder, "two", 2)
    replay(folder, "zero3", 2, zero_3(folder))
    return folder


def came_from(folder, layout, method):
    return read(folder / layout / method / "came_from.json")


def watched(folder, layout, method):
    """Return the groups that judge.watch scored, sorted; the file has them in the order of the processes."""
    groups = read_jsonl(folder / layout / method / "watch.jsonl")
    return sorted(groups, key=lambda group: (group["step"], group["query_id"]))


@pytest.mark.parametrize(("layout", "method"), [("two", "dapo"), ("two", "gspo"), ("zero3", "grpo"), ("zero3", "dapo")])
def test_two_processes_give_the_same_rewards_advantages_update_and_metrics_as_one(replayed, method, layout):
    one, two = came_from(replayed, "one", method), came_from(replayed, layout, method)
    assert repr(two["advantages"]) == repr(one["advantages"]) and max(map(abs, one["advantages"][1])) > 0.1
    assert json.dumps(two["kept"]) == json.dumps(one["kept"])
    assert [len(step) for step in one["kept"]] == [4, 4]
    assert_the_same_update(replayed / "policy", replayed / "one" / method, replayed / layout / method)

    groups, others = watched(replayed, "one", method), watched(replayed, layout, method)
    assert others == groups and 0 < len(groups) < 8 and all(group["failed"] == 0 for group in groups)

    steps = logged(replayed, "one", method)
    expected = {"rollout/tool_error_rate", "judge/tie_rate", "true/rank_agreement", "kl", "judge/sigma_noise"}
    assert expected < steps[0].keys() and "watch/agreement" in steps[0].keys() | steps[1].keys()  # drawn at random
    for step, other in zip(steps, logged(replayed, layout, method), strict=True):
        assert other == {
            name: pytest.approx(value, rel=0.02 if name in BY_MICRO_BATCH else 1e-4, abs=1e-6)
            for name, value in step.items()
        }


@pytest.mark.parametrize("layout", ["two", "zero3"])
def test_balanced_micro_batches_have_similar_tokens_on_all_processes_and_give_the_same_update(replayed, layout):
    plain, balanced = came_from(replayed, layout, "dapo"), came_from(replayed, layout, "balanced")
    assert repr(balanced["advantages"]) == repr(plain["advantages"])
    assert sum(map(sum, balanced["counts"])) == sum(map(sum, plain["counts"]))
    waits = [
        sum(max(counts) for counts in run["counts"]) * 2 / sum(map(sum, run["counts"])) for run in (plain, balanced)
    ]
    assert len(balanced["counts"]) == 2 * len(plain["counts"]) == 8 and waits[1] < 1.05 < waits[0]
    assert_the_same_update(replayed / "policy", replayed / "one" / "dapo", replayed / layout / "balanced")


def test_two_processes_replace_the_same_groups_as_one(replayed):
    one, two = came_from(replayed, "one", "resampled"), came_from(replayed, "two", "resampled")
    assert repr(two["advantages"]) == repr(one["advantages"]) and json.dumps(two["kept"]) == json.dumps(one["kept"])
    for step in range(2):
        entries = [run["log"][step] for run in (one, two)]
        assert entries[0]["rollout/replaced_groups"] == entries[1]["rollout/replaced_groups"]
        assert len({group["query_id"] for group in one["kept"][step]}) == 4
    assert sum(entry["rollout/replaced_groups"] for entry in one["log"][:2]) > 0
    assert_the_same_update(replayed / "policy", replayed / "one" / "resampled", replayed / "two" / "resampled")


def test_two_processes_have_one_critic(replayed):
    one, two = came_from(replayed, "one", "ppo"), came_from(replayed, "two", "ppo")
    for rows, others in zip(one["advantages"], two["advantages"], strict=True):
        assert len(rows) == len(others) == 16
        # each process pads to its own longest trajectory
        assert all(row[: len(other)] == pytest.approx(other, abs=1e-4) for row, other in zip(rows, others, strict=True))
    errors, others = ([entry["critic/error"] for entry in run["log"][:2]] for run in (one, two))
    assert others == pytest.approx(errors, rel=1e-4)
    # the critic has learned in the first step
    assert max(map(abs, one["advantages"][1][0])) > 0.1 and one["log"][1]["critic/value"] != 0
    assert_the_same_update(replayed / "policy", replayed / "one" / "ppo", replayed / "two" / "ppo")


def assert_the_same_update(start, one, other):
    """The updates differ by the tolerance at most, and every tensor has moved by much more."""
    start, one, other = (load_file(folder / "model.safetensors") for folder in (start, one, other))
    assert start.keys() == one.keys() == other.keys()
    assert [name for name in start if (one[name] - start[name]).abs().max() < 20 * TOLERANCE] == []
    differences = torch.cat([(other[name] - one[name]).abs().flatten() for name in start])
    assert differences.max() < TOLERANCE and (differences > 1e-6).float().mean() < SHARE_BEYOND_1E6


def test_processes_with_different_numbers_of_turns_end_together_with_one_policy(replayed):
    """In rollouts and in the curve's evaluation one process ends after one turn, the other after six."""
    assert_the_same_update(replayed / "policy", replayed / "two" / "ragged", replayed / "zero3" / "ragged")
    two, sharded = (came_from(replayed, layout, "ragged") for layout in ("two", "zero3"))
    for step in sharded["kept"]:
        assert [{trajectory["meta"]["turns"] for trajectory in group["trajectories"]} for group in step] == [
            {TURNS[0]}
        ] * 2 + [{TURNS[1]}] * 2
    # under ZeRO-3 no process holds the weights between steps
    assert sharded["weights_held"] == [0, 0] and min(two["weights_held"]) > 10_000
    for step in two["log"][:2]:  # the time of a step is that of the slowest process
        assert 0 < step["time/rollout_s"] < step["step_time"] and step["time/update_s"] > 0


BY_MICRO_BATCH = ("kl", "entropy")  # TRL averages token means over micro batches, which are drawn at random


def test_lora_under_zero_3_saves_an_ordinary_policy_with_merged_weights(replayed):
    before, path = weights(replayed / "policy"), replayed / "zero3" / "lora"
    assert differ(before, weights(path)) == [name for name in before if "_proj." in name]
    assert (path / "adapter" / "adapter_model.safetensors").is_file()


def logged(folder, layout, method):
    """Return the metrics of each step, without times."""
    times = ("time/", "step_time", "train_")
    log = came_from(folder, layout, method)["log"]
    return [{name: value for name, value in step.items() if not name.startswith(times)} for step in log]


def test_two_processes_evaluate_like_one_process(folder):
    """Each process takes its share of the queries; then one process reads the stored trajectories of two."""
    options = {"name": "shared", "evaluate__checkpoints": {"sft": "runs/tiny/sft", "rl": "runs/tiny/rl"}}
    done = run(folder, "evaluate.py", processes=2, **options)
    # each process makes half of 4 times 20 trajectories
    assert done.returncode == 0 and "evaluate 100% 40/40" in done.stdout + done.stderr, done.stderr
    summary = read(folder / "runs" / "tiny" / "summary.json")
    one, two = folder / "runs" / "tiny" / "evaluate", folder / "runs" / "shared" / "evaluate"
    parts = {f"{name}_{decoding}.jsonl" for name in ("sft", "rl") for decoding in ("sampled", "greedy")}
    for name in {*parts, "baseline.jsonl", "tournaments.jsonl"}:
        assert (one / name).read_bytes() == (two / name).read_bytes()
    times = {name: (two / name).stat().st_mtime_ns for name in parts}
    run_well(folder, "evaluate.py", **options)
    shared = read(folder / "runs" / "shared" / "summary.json")
    assert {name: shared[name] for name in ("sft", "rl")} == {name: summary[name] for name in ("sft", "rl")}
    assert times == {name: (two / name).stat().st_mtime_ns for name in parts}


RL = {
    "processes": 2, "name": "zero3", "rl__init_run": "tiny", "rl__deepspeed": "zero_3.json", "rl__steps": 3,
    "rl__save_steps": 1, "rl__eval_steps": 2, "rl__eval_queries": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def unbroken(folder):
    """RL under ZeRO-3 on two processes, from the policy of the pipeline."""
    zero_3(folder)
    run_well(folder, "train_rl.py", **RL)
    return folder / "runs" / "zero3" / "rl"


def test_a_policy_trained_under_zero_3_is_whole(unbroken, folder):
    from transformers import AutoModelForCausalLM

    before, after = weights(folder / "runs" / "tiny" / "sft"), weights(unbroken)
    assert differ(before, after) == list(before) and all(before[name].shape == after[name].shape for name in before)
    loaded = AutoModelForCausalLM.from_pretrained(unbroken)
    assert loaded.get_input_embeddings().weight.equal(after["model.embed_tokens.weight"])
    log = read(unbroken / "checkpoint-3" / "trainer_state.json")["log_history"]
    kl = [entry["kl"] for entry in log if "kl" in entry]
    assert kl[0] == 0 < kl[-1]  # towards the reference policy, which ZeRO-3 shards too
    points = [json.loads(line) for line in (unbroken / "curve.jsonl").read_text().splitlines()]
    groups = [json.loads(line)["step"] for line in (unbroken / "groups.jsonl").read_text().splitlines()]
    assert [point["step"] for point in points] == [0, 2] and sorted(set(groups)) == [0, 2]


def test_after_a_kill_under_zero_3_the_same_command_makes_the_policy_of_an_unbroken_run(unbroken, folder):
    options = RL | {"name": "killed3"}
    broken = folder / "runs" / "killed3" / "rl"
    process = start(folder, "train_rl.py", "runs/killed3/rl/checkpoint-1/whole.json", **options)
    psutil.Process(process.pid).children()[1].kill()
    code, line = ends(process, folder)
    assert code == 128 + signal.SIGKILL and "a training process was killed" in line
    assert not (broken / "model.safetensors").exists()
    run_well(folder, "train_rl.py", **options)
    assert differ(weights(broken), weights(unbroken)) == []
    for name in ("curve.jsonl", "groups.jsonl"):
        assert (broken / name).read_text() == (unbroken / name).read_text()
