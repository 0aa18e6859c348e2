import asyncio
import math

import pytest
import torch

from arenarl.rollout.generation import GeneratedTurn
from arenarl.rollout.parity import Parity, measure_parity, require_parity
from arenarl.system.errors import UserError

PROMPTS = [[5, 6, 7], [8, 9]]


class Engine:
    """Takes the model's own greedy tokens and logprobs, `off` by so many nats;
    from the second token on other tokens, if `astray`."""

    def __init__(self, model, off=0.0, astray=False):
        self.model, self.off, self.astray = model, off, astray

    async def generate(self, request):
        assert request.temperature == 0
        token_ids, logprobs_T = list(request.token_ids), []
        for position in range(request.max_tokens):
            with torch.no_grad():
                logprobs_V = torch.log_softmax(self.model(torch.tensor([token_ids])).logits[0, -1], dim=-1)
            token_ids.append(int(logprobs_V.topk(2).indices[1 if self.astray and position else 0]))
            logprobs_T.append(float(logprobs_V[token_ids[-1]]) + self.off)
        await asyncio.sleep(0)
        return GeneratedTurn(token_ids[len(request.token_ids) :], logprobs_T)


def test_an_engine_that_computes_the_same_differs_by_nothing(model):
    parity = measure_parity(Engine(model), model.train(), PROMPTS, max_tokens=5)
    assert model.training and parity.max_difference < 1e-5 and parity.equal_greedy == 1
    assert set(parity.metrics) == {"parity/max_difference", "parity/mean_difference", "parity/equal_greedy"}
    model.eval()


def test_the_differences_are_those_of_the_logprobs_and_of_the_first_choices(model):
    """4 tokens on each of 2 prompts, each off by .25; all but the first of each are the model's second choice."""
    parity = measure_parity(Engine(model, off=-0.25, astray=True), model, PROMPTS, max_tokens=4)
    assert parity.mean_difference == pytest.approx(0.25, abs=1e-4) and parity.max_difference == pytest.approx(
        0.25, abs=1e-4
    )
    assert parity.equal_greedy == 0.25


def test_a_difference_within_the_bound_is_fine():
    require_parity(Parity(3.0, 0.1, 0.0), None, bound=0.1, step=0, is_tied=True)


@pytest.mark.parametrize(("parity", "first", "is_tied", "cause"), [
    (Parity(2.0, 1.0, 0.1), None, False, "holds another model"),
    (Parity(2.0, 1.0, 0.9), None, False, "another precision; keep policy.dtype"),
    (Parity(2.0, 1.0, 0.9), Parity(0.02, 0.01, 1.0), False,
     "began with 0.01: most likely updated weights did not reach vLLM;"),
    (Parity(2.0, 1.0, 0.9), Parity(0.02, 0.01, 1.0), True, "of the tied embeddings only one copy"),
    (Parity(math.nan, math.nan, 0.0), None, True, "overflowed"),
])  # fmt: skip
def test_a_drift_stops_the_run_and_names_the_likely_cause(parity, first, is_tied, cause):
    with pytest.raises(UserError, match="disagree at step 40: logprobs differ by .*parity_bound=0.1") as error:
        require_parity(parity, first, bound=0.1, step=40, is_tied=is_tied)
    assert cause in str(error.value) and "\n" not in str(error.value)
