"""The infrastructure around every stage of a run: processes, ZeRO-3, checkpoints, provenance, timing, tracking.

The scripts call it before and after their work; what they do in between is in the packages above. Open `stage` first,
then `checkpoints`, from which a killed run resumes.
"""
