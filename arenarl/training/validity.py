"""Stops a run that learns nothing, as all rewards are equal or none: no trajectory is valid, the world rewards none,
the judge gives no verdicts.

The first is what a model looks like that was never taught the form of an answer, or whose turns do not end. No curve of
rewards shows it: the mean of ranks is ½. The first two are said in the first step, and end the run if it goes on. All
processes look at every step alike.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence

from arenarl.llm.client import FEWEST, WINDOW, RunStopped
from arenarl.system.progress import say
from arenarl.training.rewards.group import Tally
from arenarl.trajectory import VALID_ENDS, RolloutGroup, Trajectory

_SHOWN_CHARS = 1500  # of a trajectory
_CAUSES = {
    "max_tokens": "they ran out of tokens: raise rollout.max_turn_tokens and rollout.max_tokens, "
    "or teach the model to end its turns (train_sft.py)",
    "no_answer": "their turns ended with neither a tool call nor <answer>…</answer>: the model does not know the form; "
    "teach it first (train_sft.py)",
    "max_turns": "they called tools until their turns were used up: raise rollout.max_turns, "
    "or set rollout.force_answer=true",
    "tool_crash": "a tool crashed, its traceback stands above: mend what environment.name names",
}
_NO_REWARD = (
    "reward.name=environment, but the world gave none a reward: it says one by Step(reward=...), score() or TRL's "
    "get_reward()"
)


class ValidityWatch:
    """`decode` makes text of token ids; `patience` steps in a row without a valid trajectory end the run."""

    def __init__(self, patience: int | None, decode: Callable[[list[int]], str]):
        self.patience, self.decode, self.steps = patience, decode, 0

    def look(self, step: int, ends: Counter[str], groups: Sequence[RolloutGroup]) -> None:
        """Take note of how the step's trajectories ended, of all processes, and of this one's groups,
        of which two trajectories are shown.

        Raises:
            RunStopped: too many steps in a row had none that is valid.
        """
        self.steps = 0 if sum(ends[end] for end in VALID_ENDS) else self.steps + 1
        if not self.steps:
            return
        cause = f"{ends.total()} trajectories, none of them valid; most often {_CAUSES[ends.most_common(1)[0][0]]}"
        if self.steps == 1:
            texts = [self._text(trajectory) for group in groups for trajectory in group.trajectories][:2]
            say("\n".join([f"step {step}: {cause}. Two of them:", *texts]))
        if self.steps == self.patience:
            raise RunStopped(f"{self.steps} steps in a row without a valid trajectory (rl.stop_without_valid): {cause}")

    def _text(self, trajectory: Trajectory) -> str:
        text, half = self.decode(trajectory.prompt_ids + trajectory.completion_ids), _SHOWN_CHARS // 2
        if len(text) > _SHOWN_CHARS:
            text = f"{text[:half]}\n[…]\n{text[-half:]}"
        return f"--- {trajectory.stop_reason}\n{text}"


class VerdictWatch:
    """Ends the run when more than `judge.max_failure_share` of the last judge calls failed, of any judge: of an LLM's
    replies alone the client does so too."""

    def __init__(self, max_share: float):
        self.max_share = max_share
        self._steps: deque[Tally] = deque()

    def look(self, tallies: Sequence[Tally]) -> None:
        """Take note of a step's groups. Raises RunStopped if too many of the last calls failed."""
        self._steps.append(sum(tallies, Tally()))
        while sum(step.calls for step in self._steps) - self._steps[0].calls >= WINDOW:
            self._steps.popleft()
        last = sum(self._steps, Tally())
        if last.calls >= FEWEST and last.failed_calls > self.max_share * last.calls:
            raise RunStopped(
                f"{last.failed_calls} of the last {last.calls} judge calls failed, "
                f"above judge.max_failure_share={self.max_share}"
            )


class RewardWatch:
    """Waits for a world's first reward, `patience` steps at most:
    a world may reward success alone, or may never have been written to reward."""

    def __init__(self, patience: int | None):
        self.patience, self.steps, self.is_over = patience, 0, False

    def look(self, step: int, rewards: Sequence[float | None]) -> None:
        """Take note of the world's rewards of a step, of all processes.
        Raises RunStopped if there has been none for too long."""
        self.is_over = self.is_over or any(reward is not None for reward in rewards)
        if self.is_over or not rewards:
            return
        self.steps += 1
        if self.steps == 1:
            say(
                f"step {step}: {len(rewards)} trajectories; {_NO_REWARD}. If it rewards nothing "
                "but success, none has succeeded yet"
            )
        if self.steps == self.patience:
            raise RunStopped(
                f"{self.steps} steps without a reward (rl.stop_without_valid): {_NO_REWARD}; or set another reward.name"
            )
