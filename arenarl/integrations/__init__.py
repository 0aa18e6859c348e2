"""The tournament as a group's reward in other trainers. One module per trainer; each imports only its own trainer.

TRL is `arenarl.tournament_reward`. docs/ranking.md says where each plugs in and what was run.
"""
