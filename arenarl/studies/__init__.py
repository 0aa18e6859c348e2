"""What is measured about the method itself, beside the papers' tables: a command each, `python -m arenarl.studies.<module>`.

Rankings with the truth known (`fidelity`, `noise_grid`), judges (`judge_reliability`, `judge_faults`, `signal_and_noise`), and time
(`bench_*`). They use the library as a stranger would; nothing below imports them. Open `fidelity` first.
"""
