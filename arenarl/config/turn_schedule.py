"""ScalingInter-RL: the maximum turns of a trajectory, stage by stage (3.3, AgentGym-RL).

RL starts with a small horizon and raises it every few optimizer steps. The horizon depends on the step alone, so that
a resumed run needs no state to be in the right stage.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class TurnSchedule:
    """Horizons h_1 < h_2 < …, each for `every` optimizer steps; the last one lasts until the end.

    >>> schedule = TurnSchedule((2, 4, 8), every=50)
    >>> [schedule.at(step) for step in (0, 49, 50, 99, 100, 1000)]
    [2, 2, 4, 4, 8, 8]
    """

    horizons: tuple[int, ...]
    every: int

    def at(self, step: int) -> int:
        """Return the maximum assistant turns of a trajectory after `step` finished optimizer steps."""
        return self.horizons[min(step // self.every, len(self.horizons) - 1)]


def turn_schedule(horizons: Sequence[int] | None, every: int | None, max_turns: int, steps: int) -> TurnSchedule:
    """Return the schedule of a run of `steps` optimizer steps; without `horizons` it is `max_turns` throughout.

    Without `every` the stages share the steps evenly; the last stage gets the remainder. Raises ValueError; its message
    starts with the key to change.
    """
    if horizons is None:
        if every is not None:
            raise ValueError(f"turns_every={every} needs stages; name the horizons in turn_schedule")
        return TurnSchedule((max_turns,), steps)
    key = f"turn_schedule={list(horizons)}"
    if not horizons or any(after <= before for before, after in pairwise(horizons)):
        raise ValueError(f"{key}: must name horizons, each larger than the one before")
    if horizons[-1] > max_turns:
        raise ValueError(
            f"{key}: {horizons[-1]} is above max_turns={max_turns}; raise max_turns, or end the schedule there"
        )
    schedule = TurnSchedule(tuple(horizons), every or max(1, steps // len(horizons)))
    begin = schedule.every * (len(horizons) - 1)
    if begin >= steps:
        raise ValueError(
            f"{key}: its last stage would begin at step {begin}, but the run ends at rl.steps={steps}; "
            "lower turns_every, remove a stage, or raise rl.steps"
        )
    return schedule
