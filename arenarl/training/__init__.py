"""group → ranks → rewards → update: where the judge meets the tournament, and both meet TRL's trainers.

What train_sft.py and train_rl.py put together. Open `rewarding` first: its `Arena` turns rollout groups into rewards; `rewards` has the
formulas (Eq. 6 and those of the methods compared with); `trl_adapter` makes TRL's trainer, `trainer_hooks` is what it calls in a step.
"""
