"""What surrounds a stage of a run, whichever it is: processes, ZeRO-3, checkpoints, provenance, time spent, tracking.

The scripts call it before and after their work; what they do in between is in the packages above. Open `stage` first, then `checkpoints`:
a run that is killed at any moment goes on from there.
"""
