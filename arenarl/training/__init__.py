"""group → ranks → rewards → update: connects judge and tournament, and both to TRL's trainers.

The parts that train_sft.py and train_rl.py assemble. Open `rewarding` first: its `Arena` turns rollout groups into
rewards; `rewards` has the formulas (Eq. 6 and those of the other methods); `trl_adapter` makes TRL's trainer, and
`trainer_hooks` is what it calls in each step.
"""
