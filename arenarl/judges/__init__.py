"""trajectories → verdicts: the judge interface, the embedded judge with its noise, LLM judges,
and the verifier of known answers.

Training and evaluation share this code. Open `judge` first: a verdict is scores on the rubric's dimensions, or None,
never a guess. `prompts` is what an LLM judge sees; `server` puts the embedded judge behind an LLM API, so that the LLM
path runs without a key.
"""
