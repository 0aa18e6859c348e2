"""Open-Travel (Section 5, ArenaRL): an embedded world, six tools over it, queries, a scripted teacher,
and what is true of a trajectory.

Nothing outside imports it but what a config's `travel` names, and benchmarks of its tools. Open `world` first, then
`tools`, which answers from it, and `truth`, by which the embedded judge scores; `queries` and `teacher` make the data.
"""
