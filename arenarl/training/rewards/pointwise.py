"""A score of each trajectory by itself: of the answer alone, as in the paper's GRPO and GSPO rows (3.2, 6.1, ArenaRL),
or of everything that the tournament's judge sees (our choice)."""

from statistics import fmean

from arenarl.config.schema import Config
from arenarl.system.errors import UserError
from arenarl.training.rewards.formulas import pointwise_reward
from arenarl.training.rewards.group import GroupOutcome, IncomingGroup, Referee, Reward, ask, scored_outcome
from arenarl.trajectory import Trajectory


async def by_score(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """The mean of `reward.repeats` scores, from 0 to 10, divided by 10; 0 for an invalid trajectory."""
    reward = referee.reward

    async def score(trajectory: Trajectory, repeat: int) -> float | None:
        verdict = await referee.judge.score(incoming.query, trajectory, reward.name == "pointwise_answer", repeat)
        return None if verdict is None else verdict.totals[0]

    valid_G, replies_G = await ask(incoming, lambda one: [score(one, repeat) for repeat in range(reward.repeats)])
    known_G = [[reply for reply in replies if reply is not None] for replies in replies_G]
    scores_G = [fmean(known) if known else None for known in known_G]
    return scored_outcome(pointwise_reward(scores_G, valid_G), replies_G, scores_G)


def _check(config: Config) -> None:
    if config.reward.repeats > 1 and config.judge.train.name == "llm" and config.judge.train.temperature == 0:
        raise UserError(
            f"reward.repeats={config.reward.repeats}: at judge.train.temperature=0 all replies to a prompt are alike, "
            "and each is paid for; set the temperature above 0, or reward.repeats=1"
        )


REWARD = Reward(by_score, reads=("reward.repeats",), check=_check)
