"""Tournaments of a rollout group: topologies, matches and rankings (ArenaRL, Section 4; Tournament-GRPO's group stage;
`balanced`, ours).

    from arenarl.tournament import run_tournament, play_tournament

Knows nothing of trajectories, judges or training: it is handed a function that compares two indices.
"""

from arenarl.tournament.play import play_tournament, run_tournament

__all__ = ["play_tournament", "run_tournament"]
