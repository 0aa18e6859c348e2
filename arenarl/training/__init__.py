"""group → ranks → rewards → advantages → update: connects judge and tournament, and both to TRL's trainers.

Open `step` first: one step, from queries to the log. `arena` turns rollout groups into rewards, by the formulas of
`rewards`; `methods` turns rewards into advantages; `trl_adapter` makes TRL's trainer, and `trl_internals` holds what
touches TRL's private parts.
"""
