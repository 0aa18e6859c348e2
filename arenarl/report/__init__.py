"""What a finished run shows its reader: the table in the terminal, figures, an HTML page, two lines of conclusion.

    python -m arenarl.report quickstart

Reads what the stages left in runs/ and results/; it neither generates nor judges. Open `summary` first, then `figures` and `page`.
"""
