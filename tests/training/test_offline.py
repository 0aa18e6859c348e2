"""DPO and AgentEvol: their examples, DPO's loss against hand-worked values, and runs in rounds that survive a kill."""

import gc
import random
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import tiny_models
import torch
from scripts import CONFIG, ROOT, differ, kill_all, run, run_well, start, weights
from transformers import Qwen3MoeConfig

from arenarl.config.schema import Config, RLConfig
from arenarl.judges.local_server import free_port, running_server
from arenarl.report.figures import training_log
from arenarl.run.checkpoints import TrainingBar
from arenarl.run.timing import Stopwatch
from arenarl.tournament.ranking import Call, Match, Ranking
from arenarl.training import offline
from arenarl.training.methods.agentevol import best_trajectories
from arenarl.training.methods.dpo import make_trainer, preference_pairs
from arenarl.training.methods.method import offline_arguments
from arenarl.training.rewards import rank_to_reward
from arenarl.training.rewards.group import GroupOutcome, Referee
from arenarl.trajectory import Query, RolloutGroup, Trajectory, read_jsonl, write_jsonl

QUERY = Query("q", "travel", "Search", "en", "Where?")


def trajectory(*own, observed=(90, 91)):
    """A trajectory of the policy's own tokens, an observation, and the last own token again."""
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
    """A match with the scores of (i, j) in both orders."""
    first, second = scores
    return Match(i, j, 0, (Call(i, j, first), Call(j, i, second and second[::-1])))


def test_pairs_come_from_matches_with_one_prompt_whose_two_orders_agree():
    agreed, reverse = match(0, 1, (3, 7), (4, 5)), match(2, 3, (9, 1), (2, 1))
    flips, half = match(0, 2, (3, 7), (7, 3)), match(0, 3, (3, 7), (5, 5))
    tie, failed = match(1, 2, (5, 5), (5, 5)), match(1, 3, (3, 7), None)
    pairs = list(preference_pairs(GROUP, outcome(agreed, flips, half, tie, failed, reverse)))
    assert [(pair["chosen_ids"][0], pair["rejected_ids"][0]) for pair in pairs] == [(11, 10), (12, 13)]
    assert pairs[0]["prompt_ids"] == [1, 2] and pairs[0]["chosen_mask"] == [1, 0, 0, 1]
    assert list(preference_pairs(GROUP, GroupOutcome([1.0] * 4, [1.0] * 4, 0, 0))) == []
    rows = enumerate(GROUP.trajectories)
    two_prompts = RolloutGroup(QUERY, [replace(trajectory, prompt_ids=[1, 2 + row // 2]) for row, trajectory in rows])
    pairs = list(preference_pairs(two_prompts, outcome(agreed, match(1, 2, (3, 7), (4, 5)), reverse)))
    assert [(pair["prompt_ids"], pair["chosen_ids"][0]) for pair in pairs] == [([1, 2], 11), ([1, 3], 12)]


def test_the_best_trajectories_are_yielded_once_with_labels_on_their_own_tokens():
    def examples_of(of_group, keep_from=1.0, group=GROUP):
        return list(best_trajectories(group, of_group, RLConfig(keep_from=keep_from)))

    twice = RolloutGroup(QUERY, [*GROUP.trajectories, GROUP.trajectories[1]])
    rewarded = outcome(rewards=(0.0, 1.0, None, 0.5, 1.0))
    kept = [{"input_ids": [1, 2, 11, 90, 91, 11], "labels": [-100, -100, 11, -100, -100, 11]}]
    assert examples_of(rewarded, group=twice) == kept and len(examples_of(rewarded, 0.5, twice)) == 2
    tied = rank_to_reward([0.5, 0.5, 2.0, 3.0])  # the best of a ranked group are kept below 1, too
    assert max(tied) < 1.0 and len(examples_of(outcome(rewards=tied))) == 2
    assert examples_of(outcome(rewards=(0.5, 0.5, 0.5, 0.5))) == []
    assert examples_of(GroupOutcome([0.5, 0.9, 0.1, 0.1], [0.5, 0.9, 0.1, 0.1], 0, 0, None)) == []  # not ranked


def test_dpo_s_loss_follows_its_equation_over_the_policy_s_own_tokens(policy_path, tokenizer, tmp_path):
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

    def log_ratio(pair, kind):
        tokens = pair["prompt_ids"], pair[f"{kind}_ids"], pair[f"{kind}_mask"]
        return own_logprob(trainer.model, *tokens) - own_logprob(trainer.ref_model, *tokens)

    with torch.no_grad():
        margins = [log_ratio(pair, "chosen") - log_ratio(pair, "rejected") for pair in pairs]
        losses = [-torch.nn.functional.logsigmoid(0.3 * margin) for margin in margins]
        loss = trainer.compute_loss(trainer.model, batch)
    assert loss.item() == pytest.approx(torch.stack(losses).mean().item(), abs=1e-5) and abs(loss.item() - 0.693) > 0.01


@pytest.mark.parametrize("has_auxiliary_loss", [True, False])
def test_dpo_uses_the_mask_only_for_the_auxiliary_loss_of_experts(policy_path, tokenizer, tmp_path, has_auxiliary_loss):
    torch.manual_seed(0)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    coefficient = 0.5 if has_auxiliary_loss else 0.0
    experts |= {"router_aux_loss_coef": coefficient, "architectures": ["Qwen3MoeForCausalLM"]}
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
    assert not batch["attention_mask"].all() and masks[0].all() == (not has_auxiliary_loss)
    losses = trainer._metrics["train"]["aux_loss"]
    assert losses == ([pytest.approx(expected, abs=1e-6)] if has_auxiliary_loss else [])


@pytest.mark.parametrize(
    ("has_gpu", "micro", "trajectories", "size"),
    [(False, 12, 1, 1), (True, 12, 1, 8), (True, 12, 2, 4), (True, 1, 2, 1)],
)
def test_a_step_has_batch_size_examples_for_any_micro_batch(monkeypatch, tmp_path, has_gpu, micro, trajectories, size):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    config = Config()
    config.rl.micro_batch_size = micro
    arguments = offline_arguments(config, tmp_path, trajectories)
    assert arguments["per_device_train_batch_size"] == size
    assert size * arguments["gradient_accumulation_steps"] == config.rl.batch_size == 16


@pytest.mark.parametrize("method", ["dpo", "agentevol"])
def test_a_round_frees_its_models_before_the_next_round_generates_and_reports_a_warm_up_beyond_its_steps(
    policy_path, tokenizer, tmp_path, monkeypatch, method, capsys
):
    config = config_of(method=method, batch_size=2, warmup_steps=1, lr_scheduler="constant_with_warmup")
    outcomes = outcome(match(0, 1, (3, 7), (4, 5)), rewards=(1.0, 1.0, 0.0, 0.0))
    find_examples = preference_pairs if method == "dpo" else best_trajectories
    examples, models = [*find_examples(GROUP, outcomes, RLConfig(keep_from=1.0))], []
    prepare_training = offline.prepare_training

    def record_models(trainer):
        models.extend(weakref.ref(model) for model in (trainer.model, getattr(trainer, "ref_model", None)) if model)
        prepare_training(trainer)

    monkeypatch.setattr(offline, "prepare_training", record_models)
    step = SimpleNamespace(folder=tmp_path, engine=SimpleNamespace(tokenizer=tokenizer))
    rounds = offline.Rounds(config, step, None, Stopwatch(tmp_path), TrainingBar("rl"))
    gc.disable()  # no automatic collection
    try:
        rounds._fit(policy_path, examples, tmp_path / "round1", tmp_path / "round1" / "policy")
    finally:
        gc.enable()
    assert len(models) == (2 if method == "dpo" else 1) and all(model() is None for model in models)
    assert "rl.warmup_steps=1: none of round1's optimizer steps (1) has the full rate" in capsys.readouterr().out


def test_examples_are_read_up_to_the_first_damaged_line(tmp_path):
    path, rng = tmp_path / "round1" / "examples.jsonl", random.Random(0)
    records = [offline._signed({"step": step, "examples": [{"ids": [step, 7]}], "variances": 0.5}) for step in range(4)]
    for _ in range(200):
        (tmp_path / "round2").mkdir(exist_ok=True)
        write_jsonl(path, records)
        content = path.read_bytes()
        place = rng.randrange(len(content))
        path.write_bytes(content[:place] + bytes([rng.randrange(256)]) * rng.randrange(3) + content[place + 1 :])
        is_equal = path.read_bytes() == content
        done = offline._read_examples(path, range(4))
        assert list(done.values()) == records[: len(done)]
        assert is_equal or len(done) < 4 or list(read_jsonl(path)) == records
        assert (tmp_path / "round2").exists() is (len(done) == 4)
        assert list(read_jsonl(path)) == list(done.values())


def test_a_resumed_round_restores_the_judge_s_variances_and_the_evolving_rubrics(tmp_path):
    """Records of earlier versions have no rubrics; of two visits to a query, the later counts."""
    kept = [{}, {"rubrics": {"a": {"old": 1.0}, "b": {"x": 1.0}}}, {"rubrics": {"a": {"new": -1.0}}}]
    steps = [{"step": step, "examples": [], "variances": {"score_df": step}} for step in range(3)]
    records = [of_step | rest for of_step, rest in zip(steps, kept, strict=True)]
    write_jsonl(tmp_path / "examples.jsonl", map(offline._signed, records))
    referee = Referee(None, None, None, None, None, 0)
    generator, arena = SimpleNamespace(model="policy"), SimpleNamespace(referee=referee)
    step = SimpleNamespace(folder=tmp_path, arena=arena, engine=SimpleNamespace(generator=generator))
    rounds = offline.Rounds(config_of(method="dpo"), step, None, Stopwatch(tmp_path), TrainingBar("rl"))
    assert rounds._collect(tmp_path / "examples.jsonl", "policy", {number: [QUERY] for number in range(3)}) == []
    assert referee.variances.score_df == 2 and referee.rubrics == {"a": {"new": -1.0}, "b": {"x": 1.0}}


@pytest.mark.slow(seconds=70)
@pytest.mark.parametrize(("method", "number"), [("dpo", 1), ("agentevol", 2)])
def test_a_killed_run_in_rounds_ends_like_an_unbroken_run(folder, tmp_path, method, number):
    """DPO starts each round from the last round's policy, AgentEvol from the start policy."""
    options = {
        "name": method, "rl__init": str(folder / "runs/tiny/sft"), "data__folder": str(folder / "data"),
        "rl__method": method, "rl__rounds": 2, "rl__steps": 4, "rl__batch_size": 2, "rl__micro_batch_size": 1,
        "rl__eval_steps": 1, "processes": 2,
    }  # fmt: skip
    whole, broken = (tmp_path / name / f"runs/{method}/rl" for name in ("whole", "broken"))
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    run_well(tmp_path / "whole", "train_rl.py", **options)
    process = start(tmp_path / "broken", "train_rl.py", f"runs/{method}/rl/round{number}/examples.jsonl", **options)
    kill_all(process)
    if number == 2:
        examples, policy = broken / "round1/examples.jsonl", broken / "round1/policy/model.safetensors"
        first, second, _ = examples.read_text().split("\n")
        examples.write_text(f"{first}\n{second.replace('1', '2', 1)}\n")
        *content, last = policy.read_bytes()
        policy.write_bytes(bytes([*content, last ^ 1]))
    printed = run_well(tmp_path / "broken", "train_rl.py", **options)
    if number == 2:
        assert "round1/examples.jsonl, line 2 is damaged" in printed and "round1/policy is damaged" in printed
    assert differ(weights(whole), weights(broken)) == []
    assert differ(weights(whole), weights(folder / "runs/tiny/sft")) != []
    for name in ("round1/examples.jsonl", "round2/examples.jsonl", "curve.jsonl"):
        assert (whole / name).read_bytes() == (broken / name).read_bytes()
    assert all((whole / f"round{k}/examples.jsonl").read_bytes().count(b"\n") == 2 for k in (1, 2))
    assert [point["step"] for point in read_jsonl(whole / "curve.jsonl")] == [0, 2, 4]
    log = training_log(whole)  # as reports and tables read it
    assert log == training_log(broken) and [entry["step"] for entry in log] == [0, 1, 2, 3]
    assert all(entry["judge/calls_per_group"] > 0 and entry["true/quality"] > 0 for entry in log)


@pytest.mark.slow(seconds=40)
def test_a_spent_budget_stops_the_rounds_and_keeps_no_step_without_verdicts(folder, tmp_path):
    data, port = folder / "data", free_port()
    judge = (ROOT / "configs/judges/local_server.yaml").read_text(encoding="utf-8").replace("8765", str(port))
    (tmp_path / "judge.yaml").write_text(judge, encoding="utf-8")
    options = {
        "name": "dpo", "rl__init": str(folder / "runs/tiny/sft"), "data__folder": str(data), "rl__method": "dpo",
        "rl__rounds": 1, "rl__steps": 3, "rl__batch_size": 2, "rl__micro_batch_size": 1, "rl__eval_steps": 1,
        "rl__eval_queries": 1, "judge__train": {"base": "judge.yaml"},
    }  # fmt: skip
    rl = tmp_path / "runs/dpo/rl"
    with running_server(CONFIG, [f"data.folder={data}"], port):
        stopped = run(tmp_path, "train_rl.py", **options, judge__max_calls=45)
        assert stopped.returncode == 2 and "judge.max_calls=45 is used up: dpo has made 45 calls" in stopped.stderr
        before = (rl / "round1/examples.jsonl").read_text()
        run_well(tmp_path, "train_rl.py", **options)
    after = (rl / "round1/examples.jsonl").read_text()
    assert after.startswith(before) and (before.count("\n"), after.count("\n")) == (1, 3)
    groups = list(read_jsonl(rl / "groups.jsonl"))
    assert {group["step"] for group in groups} == {0, 1, 2}
    assert all(call["scores"] for group in groups for match in group["ranking"]["matches"] for call in match["calls"])
