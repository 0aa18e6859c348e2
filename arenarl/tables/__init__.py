"""The papers' tables and figures: configs/tables lists rows and seeds, the three scripts run them, results/ holds them.

    python -m arenarl.tables table2

The top package. Nothing here depends on a domain; the configs of a table set its domain. Open `rows` first (what a
table is), then `runner` (rows → results/), `summary` (means, intervals, differences) and `pages`. `documents` fills in
README and docs.
"""
