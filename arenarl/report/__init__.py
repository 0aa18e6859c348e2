"""Reports on a finished run: the table in the terminal, figures, an HTML page, a two-line conclusion.

    python -m arenarl.report quickstart

Reads what the stages wrote to runs/; it neither generates nor judges trajectories. Open `summary` first,
then `figures` and `page`.
"""
