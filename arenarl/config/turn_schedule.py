"""ScalingInter-RL: how many turns a trajectory may take, stage by stage (3.3, AgentGym-RL).

RL begins with a small horizon and widens it every so many optimizer steps. The horizon is a function of the step alone:
a run that is resumed, at a stage's boundary or elsewhere, needs no state to be in the right stage.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class TurnSchedule:
    """Horizons h_1 < h_2 < …, each for `every` optimizer steps, the last for all that are left.

    >>> schedule = TurnSchedule((2, 4, 8), every=50)
    >>> [schedule.at(step) for step in (0, 49, 50, 99, 100, 1000)]
    [2, 2, 4, 4, 8, 8]
    """

    horizons: tuple[int, ...]
    every: int

    def at(self, step: int) -> int:
        """Assistant turns that a trajectory of the optimizer step after `step` finished ones may take."""
        return self.horizons[min(step // self.every, len(self.horizons) - 1)]


def turn_schedule(horizons: Sequence[int] | None, every: int | None, max_turns: int, steps: int) -> TurnSchedule:
    """The schedule of a run of `steps` optimizer steps; without `horizons` it is `max_turns` throughout.

    Without `every` the stages share the steps evenly, and the last has the remainder.

    Raises:
        ValueError: begins with the name of the key to change.
    """
    if horizons is None:
        if every is not None:
            raise ValueError(f"turns_every={every}: there are no stages without a turn_schedule; name the horizons")
        return TurnSchedule((max_turns,), steps)
    key = f"turn_schedule={list(horizons)}"
    if not horizons or any(after <= before for before, after in pairwise(horizons)):
        raise ValueError(f"{key}: must name horizons, each larger than the one before")
    if horizons[-1] > max_turns:
        raise ValueError(f"{key}: {horizons[-1]} is above max_turns={max_turns}; raise it, or end the schedule there")
    schedule = TurnSchedule(tuple(horizons), every or max(1, steps // len(horizons)))
    begin = schedule.every * (len(horizons) - 1)
    if begin >= steps:
        raise ValueError(
            f"{key}: its last stage would begin at step {begin}, and the run ends at rl.steps={steps}; "
            "lower turns_every, take out a stage, or raise rl.steps"
        )
    return schedule
