"""One step ahead: a real GRPOTrainer and a server that stands in for vLLM, whose policy does not depend on weights."""

import asyncio
from collections import Counter

import pytest
from aiohttp import web
from judge_servers import serving
from parts import QUERIES, ByNumber, KeptSteps, arena_of

from arenarl.config.load import config_of_keys
from arenarl.llm.client import RunStopped
from arenarl.rollout.backends import make_engine
from arenarl.system.errors import UserError
from arenarl.training import trl_adapter as adapter
from arenarl.training.requirements import check_method
from arenarl.training.step_ahead import FILE, StepAhead
from arenarl.trajectory import read_jsonl

SEARCH = '{"name": "universal_search", "arguments": {"query": "quiet cafe in Chengdu"}}'
STEPS = 3


class Server:
    """Answers as vLLM does: a search or an answer, by the request's seed. Each turn takes 20 ms.

    `turns` counts the requests; `late_loads` counts turns that were under way while new weights arrived.
    """

    def __init__(self, tokenizer):
        self.tokenizer, self.turns, self.under_way, self.late_loads = tokenizer, 0, 0, 0
        self.app = web.Application()
        self.app.router.add_post("/v1/completions", self.complete)
        self.app.router.add_post("/collective_rpc", self.load)
        self.app.router.add_post("/reset_prefix_cache", self.load)

    async def complete(self, request):
        body = await request.json()
        self.turns, self.under_way = self.turns + 1, self.under_way + 1
        await asyncio.sleep(0.02)
        self.under_way -= 1
        is_first = self.tokenizer.decode(body["prompt"]).count("<|im_start|>assistant") == 1
        seed = body.get("seed") or 0
        call = f"<tool_call>\n{SEARCH}\n</tool_call>"
        rest = call if is_first and seed % 2 else f"<answer>\nplace {seed % 1000}\n</answer>"
        token_ids = [*self.tokenizer.encode(f"<think>\nlook\n</think>\n\n{rest}"), self.tokenizer.eos_token_id]
        logprobs = {"token_logprobs": [-9.0 if seed % 4 == 1 else 0.0] * len(token_ids)}
        choice = {"token_ids": token_ids, "logprobs": logprobs, "finish_reason": "stop"}
        return web.json_response({"choices": [choice]})

    async def load(self, request):
        self.late_loads += self.under_way
        return web.json_response({"success": True})


class KeptAhead(KeptSteps, StepAhead):
    """Keeps every step's groups, and can stop the run at a step."""

    stops_at = None

    def finish(self, number):
        if number == self.stops_at:
            raise RunStopped("a test stops the run")
        return super().finish(number)


class Run:
    """A run of `STEPS` steps with `steps_ahead`."""

    def __init__(self, steps_ahead, policy_path, tokenizer, compact, folder, resume=None, stops_at=None, **keys):
        server = Server(tokenizer)
        with serving(server.app) as url:
            known = {
                "rl.steps_ahead": steps_ahead, "rl.steps": STEPS, "rl.groups": 2, "rl.micro_batch_size": 8,
                "rl.save_steps": 1, "rl.learning_rate": 1e-3, "rl.beta": 0.0, "rollout.group_size": 4,
                "rollout.max_tokens": 400, "rollout.backend": "vllm_server", "rollout.parity_bound": 100.0,
                "rollout.server_url": url.removesuffix("/v1"), "rollout.server_weights": str(folder / "served"),
                "policy.dtype": "float32", "wandb.mode": "disabled", "environment.schemas_in_prompt": False,
            }  # fmt: skip
            config = config_of_keys(nested(known | keys), "test")
            engine = make_engine(config, tokenizer, lambda: compact)
            self.arena = arena_of(config, ByNumber())
            steps = (KeptAhead if steps_ahead else KeptSteps)(config, QUERIES, engine, self.arena, None, folder)
            steps.stops_at = stops_at
            self.groups, self.outcomes, self.server = steps.all_groups, steps.all_outcomes, server
            self.trainer = adapter.make_trainer(config, policy_path, QUERIES, steps)
            self.rows, roll_out = [], self.trainer.rollout_func
            self.trainer.rollout_func = lambda *arguments: self.rows.append(roll_out(*arguments)) or self.rows[-1]
            with adapter.saved_if_stopped(self.trainer):
                self.trainer.train(resume_from_checkpoint=resume)

    def logged(self, name):
        return [entry[name] for entry in self.trainer.state.log_history if name in entry]


def nested(keys):
    sections = {}
    for key, value in keys.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    return sections


@pytest.fixture(scope="module")
def runs(policy_path, tokenizer, compact, tmp_path_factory):
    """The runs with and without a step ahead, and their folder."""
    folders = [tmp_path_factory.mktemp("ahead") for _ in range(2)]
    return *(Run(ahead, policy_path, tokenizer, compact, folders[ahead]) for ahead in range(2)), folders[1]


def test_queries_seeds_and_ranks_are_those_of_the_step_that_they_are_for(runs):
    """Also with the judge's variances, which every step changes and the next one reads."""
    plain, ahead, _ = runs
    assert len(plain.groups) == STEPS and ahead.groups == plain.groups
    ranks, expected = ([[one.ranks_G for one in of] for of in run.outcomes] for run in (ahead, plain))
    assert ranks == expected and ahead.arena.referee.variances == plain.arena.referee.variances
    assert ahead.server.turns == plain.server.turns
    assert ahead.server.late_loads == plain.server.late_loads == 0  # weights arrive when nothing is generated


def test_staleness_and_the_effect_of_dropped_anchors_are_logged(runs):
    plain, ahead, _ = runs
    assert ahead.logged("rollout/staleness") == [0, 1, 1] and plain.logged("rollout/staleness") == []
    shares = ahead.logged("rollout/anchor_tokens_dropped")
    assert shares[0] == 0
    for step in range(STEPS):
        trajectories = [one for group in ahead.groups[step] for one in group.trajectories]
        masks, is_stale = ahead.rows[step]["env_mask"], step > 0
        for trajectory, mask in zip(trajectories, masks, strict=True):
            assert sum(mask) == (0 if is_stale and trajectory.is_anchor else trajectory.policy_tokens)
        anchors = sum(one.policy_tokens for one in trajectories if one.is_anchor)
        assert shares[step] == pytest.approx(is_stale * anchors / sum(one.policy_tokens for one in trajectories))


def test_the_clipped_share_is_the_share_of_ratios_above_trl_s_bound(runs):
    """The server gives some turns a log-probability of -9, so that their ratios are far above 3."""
    for run in runs[:2]:
        for step, share in enumerate(run.logged("sampling/importance_sampling_ratio/clipped")):
            counts = Counter()
            for mask, logprobs_T in zip(run.rows[step]["env_mask"], run.rows[step]["logprobs"], strict=True):
                counts.update(logprob for own, logprob in zip(mask, logprobs_T, strict=True) if own)
            # every token of the random policy has a probability near 1/700, so that of -9 is clipped and of 0 is not
            assert 0 <= share <= counts[-9.0] / counts.total() + 1e-6
    assert max(runs[1].logged("sampling/importance_sampling_ratio/clipped")) > 0


def test_the_seconds_of_a_step_add_up(runs):
    for run, first in zip(runs, ("rollout", "wait"), strict=False):
        for entry in run.trainer.state.log_history[:STEPS]:
            parts = [entry[f"time/{part}_s"] for part in (first, "forward", "judge", "sync", "update")]
            assert min(parts) >= 0 and sum(parts) == pytest.approx(entry["step_time"], abs=1e-6)


@pytest.mark.parametrize("step", [1, 2])
def test_a_resumed_run_uses_the_stored_batch_unchanged(runs, policy_path, tokenizer, compact, step):
    """The server generates nothing for the step whose groups the checkpoint holds."""
    _, whole, folder = runs
    checkpoint = folder / f"checkpoint-{step}"
    stored = [record["query_id"] for record in read_jsonl(checkpoint / FILE)]
    assert stored == [group.query.query_id for group in whole.groups[step]]
    resumed = Run(1, policy_path, tokenizer, compact, folder, resume=str(checkpoint))
    assert resumed.groups == whole.groups[step:] and resumed.logged("rollout/staleness") == [0, 1, 1]
    assert [row["logprobs"] for row in resumed.rows] == [row["logprobs"] for row in whole.rows[step:]]
    turns = [one.meta["turns"] for of in whole.groups[step + 1 :] for group in of for one in group.trajectories]
    prompts = 4  # of the parity check
    assert resumed.server.turns == sum(turns) + prompts
    ours, theirs = (dict(run.trainer.model.named_parameters()) for run in (resumed, whole))
    assert all(weights.equal(theirs[name]) for name, weights in ours.items())


def test_a_stopped_run_keeps_the_batch_that_it_could_not_finish(policy_path, tokenizer, compact, tmp_path):
    """The last checkpoint has no batch: nothing follows the last step."""
    with pytest.raises(UserError, match="a test stops the run; saved .*/checkpoint-2"):
        Run(1, policy_path, tokenizer, compact, tmp_path, stops_at=2, **{"rl.save_steps": 100})
    assert {record["step"] for record in read_jsonl(tmp_path / "checkpoint-2" / FILE)} == {2}
    resumed = Run(1, policy_path, tokenizer, compact, tmp_path, resume=str(tmp_path / "checkpoint-2"))
    assert len(resumed.groups) == 1 and not (tmp_path / "checkpoint-3" / FILE).exists()


@pytest.mark.parametrize(("keys", "words"), [
    ({"rollout.backend": "vllm"}, "vllm generates on the trainer's own GPUs; set rollout.backend=vllm_server"),
    ({"rl.method": "dpo"}, "rl.steps_ahead=1 needs rl.method=online, not dpo; leave it out"),
])  # fmt: skip
def test_what_cannot_work_is_refused_with_one_line(keys, words):
    with pytest.raises(UserError, match=words):
        check_method(config_of_keys(nested({"rl.steps_ahead": 1} | keys), "test"))


def test_the_gain_is_the_longer_of_generation_and_update():
    """Two rollouts; the second one has two updates. In turn 2 + 1 + 6 + .5 s and 7 + 1 + 4 + .5 s."""
    parts = ("rollout", "judge_after", "forward", "update", "sync")
    first, second, third = ([2, 1, 2, 4, 0.5], [7, 1, 1, 2, 0.5], [None, None, None, 1, None])
    history = [
        {f"time/{part}_s": value for part, value in zip(parts, values, strict=True) if value is not None}
        for values in (first, second, third)
    ]
    line = adapter.gain_of_a_step_ahead([*history, {"train_loss": 1.0}])
    assert "rollout 4.50 s, judging after it 1.00 s, forward and update 5.00 s, weight sync 0.50 s" in line
    assert "one after the other 11.00 s, one step ahead (rl.steps_ahead=1) 7.50 s, or 68%" in line
