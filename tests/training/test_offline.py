"""DPO and AgentEvol: what they take of a group, DPO's loss by hand, and whole runs in rounds that survive a kill."""

import gc
import json
import weakref
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import tiny_models
import torch
from scripts import CONFIG, ROOT, differ, run, run_well, start, weights
from transformers import Qwen3MoeConfig

from arenarl.config.schema import Config, RLConfig
from arenarl.report.figures import training_log
from arenarl.run.checkpoints import TrainingBar
from arenarl.run.timing import Stopwatch
from arenarl.tournament.ranking import Call, Match, Ranking
from arenarl.training import offline
from arenarl.training.methods.agentevol import best_trajectories
from arenarl.training.methods.dpo import make_trainer, preference_pairs
from arenarl.training.methods.method import offline_arguments
from arenarl.training.rewards import rank_to_reward
from arenarl.training.rewards.group import GroupOutcome
from arenarl.trajectory import Query, RolloutGroup, Trajectory

QUERY = Query("q", "travel", "Search", "en", "Where?")


def trajectory(*own, observed=(90, 91)):
    """Own tokens, an observation, the last of the own tokens once more."""
    ids, mask = [*own, *observed, own[-1]], [1] * len(own) + [0] * len(observed) + [1]
    return Trajectory("q", [], "answer", prompt_ids=[1, 2], completion_ids=ids, policy_mask_T=mask)


GROUP = RolloutGroup(QUERY, [trajectory(10 + row) for row in range(4)])


def config_of(**rl):
    config = Config(rl=RLConfig(**rl))
    config.policy.dtype, config.wandb.mode = "float32", "disabled"
    return config


def outcome(*matches, rewards=(0.0, 1.0, None, 0.5)):
    return GroupOutcome(list(rewards), list(rewards), 0, 0, Ranking([], [], list(matches)))


def match(i, j, *scores):
    """Scores of (i, j), in both orders of asking."""
    first, second = scores
    return Match(i, j, 0, (Call(i, j, first), Call(j, i, second and second[::-1])))


def test_pairs_are_matches_in_which_both_orders_prefer_the_same():
    agreed, reverse = match(0, 1, (3, 7), (4, 5)), match(2, 3, (9, 1), (2, 1))
    flips, half = match(0, 2, (3, 7), (7, 3)), match(0, 3, (3, 7), (5, 5))
    tie, failed = match(1, 2, (5, 5), (5, 5)), match(1, 3, (3, 7), None)
    pairs = list(preference_pairs(GROUP, outcome(agreed, flips, half, tie, failed, reverse)))
    assert [(pair["chosen_ids"][0], pair["rejected_ids"][0]) for pair in pairs] == [(11, 10), (12, 13)]
    assert pairs[0]["prompt_ids"] == [1, 2] and pairs[0]["chosen_mask"] == [1, 0, 0, 1]
    assert list(preference_pairs(GROUP, GroupOutcome([1.0] * 4, [1.0] * 4, 0, 0))) == []


def test_trajectories_whose_world_began_otherwise_make_no_pair():
    group = RolloutGroup(
        QUERY, [replace(one, prompt_ids=[1, 2 + row // 2]) for row, one in enumerate(GROUP.trajectories)]
    )
    matches = [match(i, j, (3, 7), (4, 5)) for i, j in ((0, 1), (1, 2), (2, 3))]
    pairs = list(preference_pairs(group, outcome(*matches)))
    assert [(pair["prompt_ids"], pair["chosen_ids"][0], pair["rejected_ids"][0]) for pair in pairs] == [
        ([1, 2], 11, 10),
        ([1, 3], 13, 12),
    ]


def test_the_best_are_taken_once_with_labels_on_their_own_tokens():
    twice = RolloutGroup(QUERY, [*GROUP.trajectories, GROUP.trajectories[1]])
    kept = list(best_trajectories(twice, outcome(rewards=(0.0, 1.0, None, 0.5, 1.0)), RLConfig(keep_from=1.0)))
    assert kept == [{"input_ids": [1, 2, 11, 90, 91, 11], "labels": [-100, -100, 11, -100, -100, 11]}]
    assert (
        len(list(best_trajectories(twice, outcome(rewards=(0.0, 1.0, None, 0.5, 1.0)), RLConfig(keep_from=0.5)))) == 2
    )


def test_of_a_ranked_group_the_best_are_taken_though_they_tie_and_of_all_alike_none():
    rewards = rank_to_reward([0.5, 0.5, 2.0, 3.0])
    assert max(rewards) < 1.0
    assert [
        len(example["input_ids"])
        for example in best_trajectories(GROUP, outcome(rewards=rewards), RLConfig(keep_from=1.0))
    ] == [6, 6]
    assert not list(best_trajectories(GROUP, outcome(rewards=(0.5, 0.5, 0.5, 0.5)), RLConfig(keep_from=1.0)))
    success = GroupOutcome([0.5, 0.9, 0.1, 0.1], [0.5, 0.9, 0.1, 0.1], 0, 0, None)
    assert not list(best_trajectories(GROUP, success, RLConfig(keep_from=1.0)))


def test_dpo_s_loss_is_that_of_its_equation_over_the_policy_s_own_tokens(policy_path, tokenizer, tmp_path):
    config = config_of(batch_size=2, micro_batch_size=2, dpo_beta=0.3)
    outcomes = outcome(match(0, 1, (3, 7), (4, 5)), match(2, 3, (9, 1), (2, 1)))
    group = RolloutGroup(QUERY, [trajectory(20 + row, 30 + row, observed=(5,) * (1 + row)) for row in range(4)])
    pairs = list(preference_pairs(group, outcomes))
    trainer = make_trainer(config, policy_path, pairs, tmp_path, tokenizer)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight += 0.05 * torch.randn_like(weight)
    batch = trainer.data_collator(pairs)

    def own_logprob(model, prompt, ids, mask):
        whole = torch.tensor([prompt + ids])
        logprobs = model(input_ids=whole).logits.log_softmax(-1)[0, :-1].gather(1, whole[0, 1:, None])[:, 0]
        return sum(logprobs[len(prompt) - 1 + place] for place, is_own in enumerate(mask) if is_own)

    losses = []
    with torch.no_grad():
        for pair in pairs:
            chosen, rejected = (
                (pair["prompt_ids"], pair[f"{kind}_ids"], pair[f"{kind}_mask"]) for kind in ("chosen", "rejected")
            )
            gains = [
                own_logprob(trainer.model, *one) - own_logprob(trainer.ref_model, *one) for one in (chosen, rejected)
            ]
            losses.append(-torch.nn.functional.logsigmoid(0.3 * (gains[0] - gains[1])))
        loss = trainer.compute_loss(trainer.model, batch)
    assert loss.item() == pytest.approx(torch.stack(losses).mean().item(), abs=1e-5) and abs(loss.item() - 0.693) > 0.01


@pytest.mark.parametrize("shares", [True, False])
def test_dpo_keeps_padding_out_of_the_loss_that_experts_share_and_attention_free_of_a_mask(
    policy_path, tokenizer, tmp_path, shares
):
    torch.manual_seed(0)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    experts |= {"router_aux_loss_coef": 0.5 if shares else 0.0, "architectures": ["Qwen3MoeForCausalLM"]}
    config = Qwen3MoeConfig(**tiny_models.SMALL, **experts)
    tiny_models.build(config).save_pretrained(tmp_path / "start")
    config = config_of(batch_size=2, micro_batch_size=2)
    group = RolloutGroup(QUERY, [trajectory(20 + row, 30 + row, observed=(5,) * (1 + 9 * row)) for row in range(4)])
    pairs = list(preference_pairs(group, outcome(match(0, 1, (3, 7), (4, 5)), match(2, 3, (9, 1), (2, 1)))))
    trainer = make_trainer(config, str(tmp_path / "start"), pairs, tmp_path, tokenizer)
    batch, masks = trainer.data_collator(pairs), []
    trainer.model.train()
    trainer.model.register_forward_pre_hook(
        lambda _, args, kwargs: masks.append(kwargs["attention_mask"]), with_kwargs=True
    )
    with torch.no_grad():
        trainer.compute_loss(trainer.model, batch)
        rows = {key: batch[key] for key in ("input_ids", "attention_mask")}
        expected = trainer.model(**rows, output_router_logits=True).aux_loss.item()
    assert not batch["attention_mask"].all() and masks[0].all() == (not shares)
    assert trainer._metrics["train"]["aux_loss"] == ([pytest.approx(expected, abs=1e-6)] if shares else [])


@pytest.mark.parametrize(
    ("has_gpu", "micro", "trajectories", "size"),
    [(False, 12, 1, 1), (True, 12, 1, 8), (True, 12, 2, 4), (True, 1, 2, 1)],
)
def test_a_step_has_the_batch_that_was_asked_for_whatever_fits_at_once(
    monkeypatch, tmp_path, has_gpu, micro, trajectories, size
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    config = Config()
    config.rl.micro_batch_size = micro
    arguments = offline_arguments(config, tmp_path, trajectories)
    assert (
        arguments["per_device_train_batch_size"] == size
        and size * arguments["gradient_accumulation_steps"] == config.rl.batch_size == 16
    )


@pytest.mark.parametrize("method", ["dpo", "agentevol"])
def test_what_a_round_has_trained_is_gone_before_the_next_one_generates(
    policy_path, tokenizer, tmp_path, monkeypatch, method
):
    config = config_of(method=method, batch_size=2)
    outcomes = outcome(match(0, 1, (3, 7), (4, 5)), rewards=(1.0, 1.0, 0.0, 0.0))
    examples = (
        [*preference_pairs(GROUP, outcomes)]
        if method == "dpo"
        else [*best_trajectories(GROUP, outcomes, RLConfig(keep_from=1.0))]
    )
    held = []
    hold_gradients_once = offline.hold_gradients_once

    def noted(trainer):
        held.extend(weakref.ref(model) for model in (trainer.model, getattr(trainer, "ref_model", None)) if model)
        hold_gradients_once(trainer)

    monkeypatch.setattr(offline, "hold_gradients_once", noted)
    step = SimpleNamespace(folder=tmp_path, engine=SimpleNamespace(tokenizer=tokenizer))
    rounds = offline.Rounds(config, step, None, Stopwatch(tmp_path), TrainingBar("rl"))
    gc.disable()  # or it may look for circles by itself
    try:
        rounds._fit(policy_path, examples, tmp_path / "round1", tmp_path / "round1" / "policy")
    finally:
        gc.enable()
    assert len(held) == (2 if method == "dpo" else 1) and all(model() is None for model in held)


@pytest.mark.slow(seconds=80)
@pytest.mark.parametrize(("method", "kills"), [("dpo", (1,)), ("agentevol", (2,))])
def test_rounds_that_are_killed_end_as_unbroken_ones_do(pipeline, tmp_path, method, kills):
    run = {
        "name": method, "rl__init": str(pipeline[0] / "runs/tiny/sft"), "data__folder": str(pipeline[0] / "data"),
        "rl__method": method, "rl__rounds": 2, "rl__steps": 4, "rl__batch_size": 2, "rl__micro_batch_size": 1,
        "rl__save_steps": 1, "rl__eval_steps": 1,
    }  # fmt: skip
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    run_well(whole, "train_rl.py", processes=2, **run)
    for number in kills:
        process = start(broken, "train_rl.py", f"runs/{method}/rl/round{number}/examples.jsonl", processes=2, **run)
        everyone = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
        for one in everyone:
            one.kill()
        psutil.wait_procs(everyone)
    run_well(broken, "train_rl.py", processes=2, **run)
    assert differ(*(weights(folder / f"runs/{method}/rl") for folder in (whole, broken))) == []
    assert differ(weights(whole / f"runs/{method}/rl"), weights(pipeline[0] / "runs/tiny/sft")) != []
    for number in (1, 2):
        files = [folder / f"runs/{method}/rl/round{number}/examples.jsonl" for folder in (whole, broken)]
        assert files[0].read_bytes() == files[1].read_bytes() and files[0].read_bytes().count(b"\n") == 2
    logs = [training_log(folder / f"runs/{method}/rl") for folder in (whole, broken)]  # what reports and tables read
    assert logs[0] == logs[1] and [entry["step"] for entry in logs[0]] == [0, 1, 2, 3]
    assert all(entry["judge/calls_per_group"] > 0 and entry["true/quality"] > 0 for entry in logs[0])
    curves = [
        [json.loads(line) for line in (folder / f"runs/{method}/rl/curve.jsonl").read_text().splitlines()]
        for folder in (whole, broken)
    ]
    assert curves[0] == curves[1] and [point["step"] for point in curves[0]] == [0, 2, 4]


@pytest.mark.slow(seconds=60)
def test_rounds_whose_calls_are_used_up_stop_and_keep_no_step_without_verdicts(pipeline, tmp_path):
    from arenarl.judges.local_server import free_port, running_server

    data, port = pipeline[0] / "data", free_port()
    judge = (ROOT / "configs/judges/local_server.yaml").read_text(encoding="utf-8").replace("8765", str(port))
    (tmp_path / "judge.yaml").write_text(judge, encoding="utf-8")
    options = {
        "name": "dpo", "rl__init": str(pipeline[0] / "runs/tiny/sft"), "data__folder": str(data), "rl__method": "dpo",
        "rl__rounds": 1, "rl__steps": 3, "rl__batch_size": 2, "rl__micro_batch_size": 1, "rl__eval_steps": 1,
        "rl__eval_queries": 1, "judge__train": {"base": "judge.yaml"},
    }  # fmt: skip
    rl = tmp_path / "runs/dpo/rl"
    with running_server(CONFIG, [f"data.folder={data}"], port):
        stopped = run(tmp_path, "train_rl.py", **options, judge__max_calls=45)
        assert stopped.returncode == 2 and "judge.max_calls=45 is used up: dpo has paid for 45 calls" in stopped.stderr
        before = (rl / "round1/examples.jsonl").read_text()
        run_well(tmp_path, "train_rl.py", **options)
    after = (rl / "round1/examples.jsonl").read_text()
    assert after.startswith(before) and (before.count("\n"), after.count("\n")) == (1, 3)
    groups = [json.loads(line) for line in (rl / "groups.jsonl").read_text().splitlines()]
    assert {group["step"] for group in groups} == {0, 1, 2}
    assert all(call["scores"] for group in groups for match in group["ranking"]["matches"] for call in match["calls"])
