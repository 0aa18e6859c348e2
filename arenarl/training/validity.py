"""Says so when a step has no valid trajectory, and stops a run in which that goes on: all rewards are equal then, and nothing is learned.

That is what a model looks like that was never taught the form of an answer, or whose turns do not end. No curve of rewards shows it: the mean
of ranks is ½.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from arenarl.llm.client import RunStopped
from arenarl.system.progress import say
from arenarl.trajectory import VALID_ENDS, RolloutGroup, Trajectory

_SHOWN_CHARS = 1500  # of a trajectory
_CAUSES = {
    "max_tokens": "they ran out of tokens: raise rollout.max_turn_tokens and rollout.max_tokens, or teach the model to end its turns (train_sft.py)",
    "no_answer": "their turns ended with neither a tool call nor <answer>…</answer>: the model does not know the form; teach it first (train_sft.py)",
    "max_turns": "they called tools until their turns were used up: raise rollout.max_turns, or set rollout.force_answer=true",
    "tool_crash": "a tool crashed, its traceback stands above: mend what environment.name names",
}


class ValidityWatch:
    """Looks at every step on all processes alike; `decode` makes text of token ids, `patience` steps in a row without a valid one end the run."""

    def __init__(self, patience: int | None, decode: Callable[[list[int]], str]):
        self.patience, self.decode = patience, decode
        self.steps = 0

    def look(self, step: int, ends: Counter[str], groups: Sequence[RolloutGroup]) -> None:
        """Take note of how the step's trajectories ended, of all processes, and of this one's groups, of which two are shown.

        Raises:
            RunStopped: too many steps in a row had none that is valid.
        """
        self.steps = 0 if sum(ends[end] for end in VALID_ENDS) else self.steps + 1
        if not self.steps:
            return
        cause = f"{ends.total()} trajectories, none of them valid; most often {_CAUSES[ends.most_common(1)[0][0]]}"
        if self.steps == 1:
            shown = [self._text(trajectory) for group in groups for trajectory in group.trajectories][:2]
            say("\n".join([f"step {step}: {cause}. Two of them:", *shown]))
        if self.steps == self.patience:
            raise RunStopped(f"{self.steps} steps in a row without a valid trajectory (rl.stop_without_valid): {cause}")

    def _text(self, trajectory: Trajectory) -> str:
        text = self.decode(trajectory.prompt_ids + trajectory.completion_ids)
        half = _SHOWN_CHARS // 2
        return f"--- {trajectory.stop_reason}\n" + (text if len(text) <= _SHOWN_CHARS else f"{text[:half]}\n[…]\n{text[-half:]}")
