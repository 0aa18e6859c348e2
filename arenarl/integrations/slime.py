"""slime: the tournament as `--custom-rm-path`, with `--group-rm`.

    # my_rm.py, on PYTHONPATH; then: --group-rm --custom-rm-path my_rm.reward
    reward = group_reward(Ranker(judge="openai", rubric="…"))

A sample without a rank is left out of the loss (`remove_sample`); its reward of 0.5 does not change its group's mean.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from arenarl.integrations.groups import neutral_rewards
from arenarl.rank import Ranker
from arenarl.system.errors import UserError


def group_reward(ranker: Ranker) -> Callable[..., Awaitable[list[float]]]:
    """Return slime's function for the rewards of a group: 1 for the first, 0 for the last (Eq. 6).
    `samples` are `slime.utils.types.Sample`s with one prompt."""

    async def reward(args: Any, samples: Sequence[Any], **_: Any) -> list[float]:
        if any(isinstance(sample, list) for sample in samples):
            raise UserError(
                "tournament: an attempt has several samples; a custom generate function must return one sample"
            )
        if any(sample.prompt != samples[0].prompt for sample in samples):
            raise UserError("tournament: the samples have different prompts; start slime with --group-rm")
        ranked = await ranker.rank(samples[0].prompt, [sample.response for sample in samples])
        for sample, value in zip(samples, ranked.rewards, strict=True):
            sample.remove_sample |= value is None
        return neutral_rewards(ranked)

    return reward
