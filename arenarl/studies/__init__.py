"""Measurements of the method itself, beside the papers' tables: each a command, `python -m arenarl.studies.<module>`.

Rankings with known truth (`fidelity`, `noise_grid`), judges (`judge_reliability`, `judge_faults`, `signal_and_noise`),
and time (`bench_*`). They use the library like any user; nothing below imports them. Open `fidelity` first.
"""
