"""Ranking without training: the best of N answers, from Python or with `arenarl rank candidates.jsonl`.

    from arenarl.rank import rank_group, rank_groups, Ranker

Needs no training stack. `ranker` ranks groups in memory, `files` reads and writes JSONL, `__main__` is the command.
"""

from arenarl.rank.ranker import RankedGroup, Ranker, rank_group, rank_groups

__all__ = ["RankedGroup", "Ranker", "rank_group", "rank_groups"]
