"""group → ranks → rewards → advantages → update: connects the judge and the tournament to TRL's trainers.

Open `step` first: one step, from queries to the log. `arena` turns rollout groups into rewards, by the formulas of
`rewards`; `methods` turns rewards into advantages. `trl_adapter` makes TRL's trainer, and `trl_internals` contains all
code that uses TRL's private parts.
"""
