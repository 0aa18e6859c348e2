"""Measurements of the method beyond the papers' tables. Each is a command, `python -m arenarl.studies.<module>`.

Rankings with known truth (`fidelity`, `noise_grid`, `rivals`), judges (`judge_reliability`, `judge_faults`,
`signal_and_noise`), training data (`data_pipeline`, `data_quality`), a training step compared with TRL's
(`bench_training`), and everything that one GPU can check (`gpu_check`). They use the library as users do. Open
`fidelity` first.
"""
