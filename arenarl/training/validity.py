"""Stop a run that cannot learn: no trajectory is valid, the environment gives no reward, or judge calls fail.

Then all rewards are equal or missing, and no reward curve shows it, because the mean of ranks is always ½. A model that
was never taught the answer format, or whose turns do not end, has no valid trajectory. The first step without a valid
trajectory or a reward prints a warning; too many such steps stop the run. All processes check the same values.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence

from arenarl.llm.client import FEWEST, WINDOW, RunStopped
from arenarl.system.errors import MOST_SHOWN, one_line
from arenarl.system.progress import say
from arenarl.training.rewards.group import Tally
from arenarl.trajectory import VALID_ENDS, RolloutGroup, Trajectory

_CAUSES = {
    "max_tokens": "they ran out of tokens: raise rollout.max_turn_tokens and rollout.max_tokens, "
    "or teach the model to end its turns (train_sft.py)",
    "no_answer": "their turns ended with neither a tool call nor <answer>…</answer>: teach the model the answer format "
    "first (train_sft.py)",
    "max_turns": "they called tools until no turn was left: raise rollout.max_turns, or set rollout.force_answer=true",
    "tool_crash": "a tool crashed (see the traceback above): fix the environment class",
    "max_seconds": "they took too long: raise rollout.max_seconds, or find out what is slow",
    "no_room": "their prompts, with the environment's first observation, are too long for the policy: lower "
    "rollout.max_tokens, shorten the observation, or name another model",
}
_NO_REWARD = (
    "reward.name=environment, but the environment returned no reward: return one from Step(reward=...), score() or "
    "TRL's get_reward()"
)


class ValidityWatch:
    """Stops the run after `patience` steps in a row without a valid trajectory; `decode` turns token ids into text."""

    def __init__(self, patience: int | None, decode: Callable[[list[int]], str]):
        self.patience, self.decode, self.steps = patience, decode, 0

    def look(self, step: int, ends: Counter[str], groups: Sequence[RolloutGroup]) -> None:
        """Check the stop reasons of all processes; a warning prints two trajectories of this process's groups.
        Raises RunStopped after too many steps in a row without a valid trajectory."""
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
        text = self.decode(trajectory.prompt_ids + trajectory.completion_ids)
        return f"--- {trajectory.stop_reason}\n{one_line(text, MOST_SHOWN)}"


class VerdictWatch:
    """Stops the run when more than `judge.max_failure_share` of the last calls to any judge failed.

    The LLM client has the same check for its own replies.
    """

    def __init__(self, max_share: float):
        self.max_share = max_share
        self._steps: deque[Tally] = deque()

    def look(self, tallies: Sequence[Tally]) -> None:
        """Add the tallies of a step's groups. Raises RunStopped if too many of the last calls failed."""
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
    """Stops the run when the environment returns no reward in the first `patience` steps.

    After the first reward, the check ends: an environment may reward only success.
    """

    def __init__(self, patience: int | None):
        self.patience, self.steps, self.is_over = patience, 0, False

    def look(self, step: int, rewards: Sequence[float | None]) -> None:
        """Check a step's environment rewards, of all processes. Raises RunStopped after too many steps without one."""
        self.is_over = self.is_over or any(reward is not None for reward in rewards)
        if self.is_over or not rewards:
            return
        self.steps += 1
        if self.steps == 1:
            say(f"step {step}: {len(rewards)} trajectories; {_NO_REWARD}. If it rewards only success, none succeeded")
        if self.steps == self.patience:
            raise RunStopped(
                f"{self.steps} steps without a reward (rl.stop_without_valid): {_NO_REWARD}; or set another reward.name"
            )
