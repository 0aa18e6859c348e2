"""Reports on a finished run: the table in the terminal, figures, an HTML page, a two-line conclusion.

    python -m arenarl.report quickstart

Reads what the stages left in runs/ and results/; it neither generates nor judges.
Open `summary` first, then `figures` and `page`.
"""
