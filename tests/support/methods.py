"""A method's trainer on fixed trajectories and scores; everything from there to the loss is real."""

import re

import numpy as np
import torch
from parts import QUERIES as ALL_QUERIES
from parts import KeptSteps, arena_of, verdict_of
from trl import GRPOTrainer

from arenarl.config.load import load_config
from arenarl.rollout.engine import RolloutEngine
from arenarl.rollout.generation import GeneratedTurn
from arenarl.system.repository import ROOT
from arenarl.training.trl_adapter import make_trainer
from arenarl.training.trl_internals import OwnTokensTrainer

QUERIES = ALL_QUERIES[:2]
SEARCH = '{"name": "universal_search", "arguments": {"query": "quiet cafe in Chengdu"}}'
INVALID = 7  # the last trajectory of the second group has no answer
SCORES = [9, 3, 3, 5, 2, None, 8, None]  # with a tie, a missing verdict, and the invalid trajectory
REWARDS = np.array([[0.9, 0.3, 0.3, 0.5], [0.2, np.nan, 0.8, 0.0]])  # pointwise: score / 10, 0 if invalid
TINY = [
    "wandb.mode=disabled", "rollout.group_size=4", "rl.groups=2", "rl.micro_batch_size=8", "rl.updates_per_rollout=1",
    "rl.steps=2", "rl.save_steps=2", "rl.eval_steps=2",
]  # fmt: skip


class Playback:
    """A policy whose k-th trajectory is fixed; an odd one searches first, and the thoughts have different lengths."""

    model = None

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.rows = {}

    async def generate(self, request):
        before = re.findall(r"look (\d+)", self.tokenizer.decode(request.token_ids))
        # a restarted trajectory has the same seed, so it gets the same row
        row = int(before[-1]) if before else self.rows.setdefault(request.seed, len(self.rows)) % len(SCORES)
        if row % 2 and not before:
            text = f"<think>\nlook {row}\n</think>\n\n<tool_call>\n{SEARCH}\n</tool_call>"
        else:
            answer = f"<think>\n{'so ' * row}\n</think>\n\n<answer>\nplace {row}\n</answer>"
            text = "no idea" if row == INVALID else answer
        return GeneratedTurn([*self.tokenizer.encode(text), self.tokenizer.eos_token_id])


class Scorer:
    """A judge that gives the k-th trajectory the k-th score, alone or in a pair; None gives no verdict."""

    def __init__(self, scores):
        self.scores = scores

    async def score(self, query, trajectory, answer_only=False, repeat=0):
        return self._verdict(trajectory)

    async def compare(self, query, first, second, repeat=0):
        return self._verdict(first, second)

    def weights(self, query):
        """The first query has two dimensions, the second one."""
        return {"plain": 1, "squared": 3} if query == QUERIES[0] else {"plain": 2}

    async def score_dimension(self, query, trajectory, dimension, repeat=0):
        score = self.scores[int(trajectory.answer.split()[-1])]
        return score if score is None or dimension == "plain" else score**2 / 10

    def _verdict(self, *trajectories):
        scores = [self.scores[int(trajectory.answer.split()[-1])] for trajectory in trajectories]
        return None if None in scores else verdict_of(*scores)


class Method:
    """A config's trainer, TRL's or `ours`. After `roll_out`, `batch` has the inputs of TRL's loss."""

    def __init__(self, policy_path, model, tokenizer, compact, folder, name, *overrides, scores=SCORES, ours=False):
        self.initial = model  # stays untrained
        self.config = load_config(ROOT / "configs" / f"{name}.yaml", [*TINY, *overrides])
        engine = RolloutEngine(
            Playback(tokenizer), tokenizer, lambda: compact, self.config.rollout, schemas_in_prompt=False
        )
        arena = arena_of(self.config, Scorer(scores))
        self.steps = KeptSteps(self.config, QUERIES, engine, arena, None, folder)
        trainer_class = OwnTokensTrainer if ours else GRPOTrainer
        self.trainer = make_trainer(self.config, policy_path, QUERIES, self.steps, trainer_class=trainer_class)
        self.trainer.current_gradient_accumulation_steps = 1  # `train` would set it

    @property
    def outcomes(self):
        return [outcome for step in self.steps.all_outcomes for outcome in step]

    def roll_out(self):
        self.trainer.model.train()
        self.batch = self.trainer._generate_and_score_completions(
            [{"prompt": query.query_id} for query in QUERIES for _ in range(4)]
        )
        return self

    @property
    def advantages(self):
        return self.batch["advantages"].numpy().reshape(2, 4)

    @property
    def own(self):
        """The mask (8, T) of the policy's own tokens."""
        return (self.batch["completion_mask"] * self.batch["tool_mask"]).numpy().astype(bool)

    def logps(self, model):
        """Return the log-probabilities (8, T) of the completions at the rollout's temperature; 0 after the end.

        Each row is computed alone, without padding.
        """
        temperature, batch = self.config.rollout.temperature, self.batch
        logps = np.zeros(batch["completion_ids"].shape)
        for row in range(len(logps)):
            prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()]
            completion = batch["completion_ids"][row][batch["completion_mask"][row].bool()]
            with torch.no_grad():
                logits = model(torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 : -1]
            logits = logits.double() / temperature
            logps[row, : len(completion)] = (logits.gather(1, completion[:, None])[:, 0] - logits.logsumexp(1)).numpy()
        return logps

    def loss(self, logps, old, ref):
        """Return TRL's loss for log-probabilities (8, T) of the old and the reference policy."""
        inputs = {**self.batch, "old_per_token_logps": torch.tensor(old, dtype=torch.float32)}
        if self.config.rl.beta:
            inputs["ref_per_token_logps"] = torch.tensor(ref, dtype=torch.float32)
        return self.trainer._compute_loss(self.trainer.model, inputs).item()


def loss_by_hand(rl, max_tokens, logps, old, ref, own, advantages):
    """Compute Eq. 8 and its variants number by number; `advantages` are (8, T)."""
    low, high = rl.epsilon, rl.epsilon if rl.epsilon_high is None else rl.epsilon_high
    by_row = []
    for row in range(len(logps)):
        tokens = [t for t in range(logps.shape[1]) if own[row, t]]
        mean_log_ratio = sum(logps[row, t] - old[row, t] for t in tokens) / len(tokens)
        losses = []
        for t in tokens:
            is_sequence = rl.importance_sampling_level == "sequence"
            ratio = np.exp(mean_log_ratio if is_sequence else logps[row, t] - old[row, t])
            clipped = min(max(ratio, 1 - low), 1 + high)
            distance = ref[row, t] - logps[row, t]
            gain = min(ratio * advantages[row, t], clipped * advantages[row, t])
            losses.append(-gain + rl.beta * (np.exp(distance) - distance - 1))
        by_row.append(losses)
    if rl.loss_type == "grpo":
        return sum(sum(losses) / len(losses) for losses in by_row) / len(by_row)
    total = sum(sum(losses) for losses in by_row)
    return total / (sum(map(len, by_row)) if rl.loss_type == "dapo" else len(by_row) * max_tokens)
