"""TRL's use of our rollouts and rewards: a real GRPOTrainer takes recorded steps on a tiny random policy."""

import asyncio
import dataclasses
import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from parts import QUERIES, ByNumber, KeptSteps, arena_of, verdict_of
from trl import GRPOTrainer

from arenarl.config.schema import Config
from arenarl.llm.client import RunStopped, Usage
from arenarl.rollout.engine import RolloutEngine
from arenarl.rollout.generation import GeneratedTurn
from arenarl.run.marks import MARK
from arenarl.system.errors import UserError
from arenarl.system.seeds import stable_seed
from arenarl.training import trl_adapter as adapter
from arenarl.training.methods.grpo import standardize
from arenarl.training.metrics import group_records
from arenarl.trajectory import read_jsonl

TOPOLOGY = "seeded_single_elimination"
SEARCH = (
    '<think>\nlook\n</think>\n\n<tool_call>\n{"name": "universal_search", "arguments": {"query": '
    '"quiet cafe in Chengdu"}}\n</tool_call>'
)


def config_of(**overrides):
    config = Config()
    config.policy.dtype, config.wandb.mode = "float32", "disabled"
    config.rollout.group_size, config.rollout.max_tokens = 4, 400
    config.rl.steps, config.rl.groups, config.rl.micro_batch_size, config.rl.learning_rate = 2, 3, 12, 1e-3
    for key, value in overrides.items():
        setattr(config.rl, key, value)
    return config


class Playback:
    """A policy that searches once or twice and answers, by the request's seed; one answer in four is invalid."""

    model = None

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    async def generate(self, request):
        turn = self.tokenizer.decode(request.token_ids).count("<|im_start|>assistant")
        if turn == 1 or (turn == 2 and request.seed % 2):
            text = SEARCH
        elif request.seed % 4 == 1:
            text = "no idea"
        else:
            text = f"<think>\ndone\n</think>\n\n<answer>\nplace {request.seed % 1000}\n</answer>"
        return GeneratedTurn([*self.tokenizer.encode(text), self.tokenizer.eos_token_id])


class SomeEqual:
    """Gives the trajectories of the queries in `equal` the same score up to rounding, and others their own scores."""

    def __init__(self, *equal):
        self.equal = equal

    async def score(self, query, trajectory, answer_only, repeat):
        number = int(trajectory.answer.split()[-1])
        score = (0.3, 0.1 + 0.2)[number % 2] if query.query_id in self.equal else number / 100
        return verdict_of(score)


class AllValid(Playback):
    async def generate(self, request):
        return await super().generate(dataclasses.replace(request, seed=request.seed // 4 * 4 + 2 * (request.seed % 2)))


class Patient(ByNumber):
    """Gives no verdict before the step's reference log-probabilities are computed."""

    def __init__(self):
        self.may_judge = threading.Event()

    async def compare(self, query, first, second, repeat=0):
        if not await asyncio.to_thread(self.may_judge.wait, 120):
            raise TimeoutError("the log-probabilities wait for the judge")
        return await super().compare(query, first, second, repeat)


class Recorder(GRPOTrainer):
    """A GRPOTrainer that records its batches, and the positions whose last hidden states get a gradient."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.generated, self.batches, self.gradients = [], [], []
        self.on_reference = lambda: None
        self.model.base_model.norm.register_forward_hook(self._watch)

    def _watch(self, module, inputs, hidden):
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: self.gradients.append(gradient.abs().sum(dim=-1) > 0))

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.generated.append(([row["prompt"] for row in inputs], dict(output)))
        return output

    def _get_per_token_logps_and_entropies(self, model, *arguments, **options):
        if model is self.ref_model:
            self.on_reference()
        return super()._get_per_token_logps_and_entropies(model, *arguments, **options)

    def _compute_loss(self, model, inputs):
        self.batches.append(dict(inputs))
        return super()._compute_loss(model, inputs)


class Steps:
    """Two optimizer steps: the trainer, and the groups and outcomes of each step."""

    def __init__(
        self, policy_path, tokenizer, compact, folder, resume=None, topology=TOPOLOGY, judge=None, points=None,
        client=None, reward="tournament", policy=Playback, **overrides
    ):  # fmt: skip
        self.config = config_of(**overrides)
        self.config.tournament.topology, self.config.reward.name, self.folder = topology, reward, folder
        rollout = self.config.rollout
        engine = RolloutEngine(policy(tokenizer), tokenizer, lambda: compact, rollout, schemas_in_prompt=False)
        self.arena = arena_of(self.config, judge or ByNumber())
        steps = self.step = KeptSteps(self.config, QUERIES, engine, self.arena, None, folder, client)
        self.groups, self.outcomes = steps.all_groups, steps.all_outcomes
        self.trainer = adapter.make_trainer(self.config, policy_path, QUERIES, steps, points, Recorder)
        if isinstance(judge, Patient):
            self.trainer.on_reference = judge.may_judge.set
        with adapter.saved_if_stopped(self.trainer):
            self.trainer.train(resume_from_checkpoint=resume)
            steps.close()

    def trajectories(self, step):
        return [trajectory for group in self.groups[step] for trajectory in group.trajectories]


@pytest.fixture(scope="module")
def steps(policy_path, tokenizer, compact, tmp_path_factory):
    return Steps(policy_path, tokenizer, compact, tmp_path_factory.mktemp("grpo"))


def loss_mask(inputs):
    return inputs["completion_mask"] * inputs["tool_mask"]


def standardized(outcomes):
    return np.concatenate([standardize(outcome.rewards_G) for outcome in outcomes])


def test_the_loss_mask_covers_the_policy_s_own_tokens(steps, tokenizer):
    for step in range(2):
        _, output = steps.trainer.generated[step]
        for row, trajectory in enumerate(steps.trajectories(step)):
            length, ids, mask = len(trajectory.completion_ids), output["completion_ids"][row], loss_mask(output)[row]
            assert ids[:length].tolist() == trajectory.completion_ids
            assert mask.tolist() == trajectory.policy_mask_T + [0] * (len(ids) - length)
            own = tokenizer.decode(ids[mask.bool()])
            rest = tokenizer.decode(ids[:length][~mask[:length].bool()])
            assert own.count("universal_search") == rest.count("<tool_response>") >= 1
            assert "<tool_response>" not in own and "<think>" not in rest and "<answer>" not in rest


def test_exactly_the_policy_s_own_tokens_get_a_gradient(steps):
    """Checked at the first step, where the KL term has no gradient: rows with advantage 0 have no gradient either."""
    inputs, has_gradient = steps.trainer.batches[0], steps.trainer.gradients[0]
    expected = loss_mask(inputs).bool() & (inputs["advantages"] != 0)[:, None]
    assert expected.any() and (~expected & inputs["completion_mask"].bool()).any()
    assert has_gradient[:, -expected.shape[1] - 1 : -1].equal(expected)


def test_rows_of_a_group_are_contiguous_with_the_anchor_first_and_standardised_rewards(steps):
    n = steps.config.rollout.group_size
    for step in range(2):
        prompts, output = steps.trainer.generated[step]
        assert prompts == [group.query.query_id for group in steps.groups[step] for _ in range(n)]
        assert len({group.query.query_id for group in steps.groups[step]}) == len(steps.groups[step]) == 3
        for group in steps.groups[step]:
            assert {trajectory.query_id for trajectory in group.trajectories} == {group.query.query_id}
            assert [trajectory.is_anchor for trajectory in group.trajectories] == [True] + [False] * (n - 1)
        expected = standardized(steps.outcomes[step])
        assert np.abs(expected).max() > 1 and output["advantages"].numpy() == pytest.approx(expected, abs=1e-5)


def test_checkpoints_keep_the_judge_s_variances(policy_path, tokenizer, compact, tmp_path):
    """A run that resumes after the first of two steps has the rewards and variances of the unbroken run."""
    options = {"save_steps": 1, "topology": "balanced"}
    whole = Steps(policy_path, tokenizer, compact, tmp_path, **options)
    resumed = Steps(policy_path, tokenizer, compact, tmp_path, resume=str(tmp_path / "checkpoint-1"), **options)
    rewards = [[outcome.rewards_G for outcome in outcomes] for outcomes in (resumed.outcomes[0], whole.outcomes[1])]
    assert rewards[0] == rewards[1]
    assert resumed.arena.referee.variances == whole.arena.referee.variances
    assert whole.trainer.state.log_history[1]["judge/sigma_noise"] > 0


def test_checkpoints_keep_the_evolving_rubrics(policy_path, tokenizer, compact, tmp_path):
    """Each query comes twice; a run that resumes between its visits has the rubrics and rewards of the unbroken run."""

    class Evolving(ByNumber):
        """Proposes the next letter, which stands for half of all answers."""

        may_judge = threading.Event()

        def checklist(self, query):
            return {"high": 1.0}

        async def check_items(self, query, trajectory, repeat=0, rubrics=()):
            number = int(trajectory.answer.split()[-1])
            return {"high": number > 500} | {rubric: stable_seed(rubric, number) % 2 == 0 for rubric in rubrics}

        async def propose_rubrics(self, query, trajectories, rubrics, repeat=0):
            return {next(letter for letter in "abc" if letter not in rubrics): 1.0}

    options = {"save_steps": 2, "steps": 4, "reward": "evolving_rubrics", "judge": Evolving()}
    whole = Steps(policy_path, tokenizer, compact, tmp_path, **options)
    resumed = Steps(policy_path, tokenizer, compact, tmp_path, resume=str(tmp_path / "checkpoint-2"), **options)
    results = [
        [(one.rewards_G, one.rubrics) for of_step in run.outcomes for one in of_step] for run in (resumed, whole)
    ]
    assert results[0] == results[1][6:] and resumed.arena.referee.rubrics == whole.arena.referee.rubrics
    assert any(len(rubrics) > 1 for _, rubrics in results[0]) and all(len(rubrics) < 2 for _, rubrics in results[1][:6])
    counts = [entry["judge/rubrics"] for entry in whole.trainer.state.log_history if "judge/rubrics" in entry]
    assert counts == pytest.approx([np.mean([len(one.rubrics) for one in step]) for step in whole.outcomes])
    (record,) = group_records(3, whole.groups[3][:1], whole.outcomes[3][:1], None)
    assert record["rubrics"] == whole.outcomes[3][0].rubrics


def test_a_run_logs_seconds_that_add_up_a_kl_from_0_on_and_groups_every_eval_steps(steps):
    log = steps.trainer.state.log_history
    for entry in log[:2]:
        parts = [entry[f"time/{part}_s"] for part in ("rollout", "forward", "judge", "update")]
        assert min(parts) >= 0 and sum(parts) == pytest.approx(entry["step_time"])
        assert 0 <= entry["time/judge_hidden_s"] <= parts[0] + parts[1]
    assert log[0]["kl"] == 0 and log[1]["kl"] > 0
    records = group_records(0, steps.groups[0], steps.outcomes[0], None)
    assert list(read_jsonl(steps.folder / "groups.jsonl")) == json.loads(json.dumps(records))


def test_log_probabilities_do_not_wait_for_the_judge(policy_path, tokenizer, compact, tmp_path):
    run = Steps(policy_path, tokenizer, compact, tmp_path, judge=Patient(), steps=1)
    assert [outcome.failed_calls for outcome in run.outcomes[0]] == [0, 0, 0]
    assert sum(outcome.judge_calls for outcome in run.outcomes[0])


@pytest.mark.parametrize(("equal", "factor", "replaced", "left"), [
    ("", 2.0, [0, 0], [0, 0]), ("01", 3.0, None, [0, 0]), ("01234", 1.5, [1, 1], None), ("012345", 9.0, [3, 3], [3, 3]),
])  # fmt: skip
def test_groups_of_equal_rewards_are_replaced_and_a_resumed_run_has_the_same_groups(
    policy_path, tokenizer, compact, tmp_path, equal, factor, replaced, left
):
    names = [f"q{digit}" for digit in equal]
    options = {"reward": "pointwise_trajectory", "policy": AllValid, "judge": SomeEqual(*names), "save_steps": 1}
    options["resample_equal"] = factor
    whole = Steps(policy_path, tokenizer, compact, tmp_path, **options)
    for step in range(2):
        ids = [group.query.query_id for group in whole.groups[step]]
        assert len(set(ids)) == len(ids) == 3
        metrics, kept = whole.trainer.state.log_history[step], sum(query_id in names for query_id in ids)
        count = metrics["rollout/replaced_groups"]
        assert count <= 3 * factor - 3 and (replaced is None or count == replaced[step])
        assert kept == left[step] if left else kept >= 2 - count  # at most one query of six has a signal
        assert metrics["frac_reward_zero_std"] == pytest.approx(kept / 3)
        batch, expected = whole.trainer.generated[step][1], standardized(whole.outcomes[step])
        assert batch["advantages"].numpy() == pytest.approx(expected, abs=1e-5) and len(expected) == 12
        for row, trajectory in enumerate(whole.trajectories(step)):
            length = len(trajectory.completion_ids)
            assert batch["completion_ids"][row][:length].tolist() == trajectory.completion_ids
    resumed = Steps(policy_path, tokenizer, compact, tmp_path, resume=str(tmp_path / "checkpoint-1"), **options)
    assert resumed.groups[0] == whole.groups[1] and resumed.outcomes[0] == whole.outcomes[1]
    pairs = zip(resumed.trainer.model.parameters(), whole.trainer.model.parameters(), strict=True)
    assert all(one.equal(other) for one, other in pairs)


class Client:
    """The parts of an LLM client that stop a run."""

    stop_reason = None

    def check(self):
        if self.stop_reason:
            raise RunStopped(self.stop_reason)

    def take_usage(self):
        return Usage(), Usage()


class Points:
    """An evaluation curve; at `step`, the client's budget ends and the point is lost."""

    def __init__(self, step=None):
        self.client, self.step, self.steps, self.kept = Client(), step, [], []

    def record(self, step):
        self.steps.append(step)
        if step == self.step:
            self.client.stop_reason = "judge.max_calls=7 is used up"
        else:
            self.kept.append(step)

    def has_point(self, step):
        return step in self.kept


@pytest.mark.parametrize("step", [1, 2])
def test_a_spent_budget_stops_the_run_between_steps_and_a_rerun_resumes_there(
    policy_path, tokenizer, compact, tmp_path, step
):
    def run(**options):
        parts = policy_path, tokenizer, compact, tmp_path
        return Steps(*parts, points=points, client=points.client, eval_steps=1, save_steps=100, **options)

    points = Points(step)
    words = f"judge.max_calls=7 is used up; saved .*/checkpoint-{step}; once the cause is removed, the same command"
    with pytest.raises(UserError, match=words):
        run()
    assert points.steps == list(range(step + 1)) and points.kept == list(range(step))
    points.client, points.step = Client(), None
    resumed = run(resume=str(tmp_path / f"checkpoint-{step}"))
    assert points.steps[step + 1 :] == list(range(step, 3)) and points.kept == [0, 1, 2]  # no point is repeated
    assert resumed.trainer.state.global_step == 2 and len(resumed.outcomes) == 2 - step


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_stopped_run_does_not_overwrite_a_complete_checkpoint(tmp_path, is_whole):
    """A kill while overwriting would leave an incomplete checkpoint that is marked as complete."""
    saved = []
    trainer = SimpleNamespace(
        model=None, args=SimpleNamespace(output_dir=str(tmp_path)), state=SimpleNamespace(global_step=4), control=None,
        _save_checkpoint=lambda *_, **__: saved.append("checkpoint"),
        callback_handler=SimpleNamespace(on_save=lambda *_: saved.append("mark")),
    )  # fmt: skip
    (tmp_path / "checkpoint-4").mkdir()
    if is_whole:
        (tmp_path / "checkpoint-4" / MARK).touch()
    with (
        pytest.raises(UserError, match="used up; saved .*/checkpoint-4; once the cause is removed"),
        adapter.saved_if_stopped(trainer),
    ):
        raise RunStopped("used up")
    assert saved == ([] if is_whole else ["checkpoint", "mark"])


@pytest.mark.parametrize("steps_groups", [(1, 1), (2, 3), (4, 5), (7, 3)])
def test_the_dataset_has_one_prompt_per_group_in_complete_shuffled_passes(steps_groups):
    number_of_steps, groups = steps_groups
    prompts = list(adapter.prompt_dataset(QUERIES, config_of(steps=number_of_steps, groups=groups))["prompt"])
    assert len(prompts) == number_of_steps * groups
    for start in range(0, len(prompts) - len(QUERIES) + 1, len(QUERIES)):
        assert sorted(prompts[start : start + len(QUERIES)]) == sorted(query.query_id for query in QUERIES)


def test_a_batch_that_splits_a_group_is_refused(steps):
    with pytest.raises(RuntimeError, match="whole groups of 4.*the version that requirements.txt pins"):
        steps.step.rollout_func([QUERIES[0].query] * 3 + [QUERIES[1].query] * 5, trainer=None)
