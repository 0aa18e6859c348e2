"""The papers' tables and figures: configs/tables lists rows and seeds, the three scripts run them, results/ holds them.

    python -m arenarl.tables table2

The top package. A table's domain is that of its configs; nothing here depends on the domain. Open `rows` first (what a
table is), then `runner` (rows → results/), `summary` (means, intervals, differences) and `pages`. `documents` fills in
README and docs.
"""
