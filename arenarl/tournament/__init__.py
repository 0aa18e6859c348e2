"""Tournaments that rank one rollout group: topologies, matches and rankings.

    from arenarl.tournament import run_tournament, play_tournament

Topologies come from ArenaRL (Section 4) and Tournament-GRPO (group stage); `balanced` is ours. The package works on
indices: the caller passes a function that compares two of them. It needs no trajectories, judges or training code.
"""

from arenarl.tournament.play import play_tournament, run_tournament

__all__ = ["play_tournament", "run_tournament"]
