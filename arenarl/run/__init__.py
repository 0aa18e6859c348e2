"""The infrastructure around every stage of a run: processes, ZeRO-3, checkpoints, provenance, timing, tracking.

The scripts call it before and after their own work. Open `stage` first, then `checkpoints`, from which a killed run
resumes.
"""
