"""ArenaRL: tournament-ranked reinforcement learning for open-ended LLM agents (arXiv 2601.06487).

`train_sft.py`, `train_rl.py` and `evaluate.py` in the repository's root are the recipe. This package holds the parts
that they share, one folder for each part of the method. Data flows one way, and so do imports:

    query ─ rollout → group ─ tournament(judge, topology) → ranks ─ training → rewards → TRL's GRPOTrainer (train_rl.py)
    query ─ rollout → trajectory ─ judges, against a baseline → evaluation → report (evaluate.py)

Importing the package loads neither torch nor TRL: `from arenarl.tournament import run_tournament` works on its own.
`from arenarl import tournament_reward` gives any GRPOTrainer the tournament as its reward.

Suffixes name the axes of an array: `_G` trajectories of a group, `_V` its valid trajectories, `_T` tokens of a
trajectory; in studies `_GN` groups and their trajectories, `_GNR` with rounds of scores, `_P` pairs, `_PR` pairs and
repeats, `_PRO` with both orders.
"""

import sys
from pkgutil import resolve_name
from types import TracebackType
from typing import Any


def __getattr__(name: str) -> Any:
    """Import `tournament_reward` on first access, so that `import arenarl` stays light."""
    if name == "tournament_reward":
        return resolve_name("arenarl.training.tournament_reward:tournament_reward")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print one line for an error that the user can fix, such as a missing package of an extra."""
    from arenarl.system.errors import explain, show

    if line := explain(error):
        show(line)
    else:
        sys.__excepthook__(kind, error, trace)


if sys.argv[:1] == ["-m"]:  # `python -m arenarl.…` imports the command's packages before `run_cli` can explain an error
    sys.excepthook = _explain
