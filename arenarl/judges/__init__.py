"""From trajectories to verdicts: the judge interface, the simulated judge, LLM judges, the verifier of known answers.

Training and evaluation share this code. Open `judge` first: a verdict is scores on the rubric's dimensions, or None,
never a guess. `prompts` builds the prompts of LLM judges. `server` puts the simulated judge behind an LLM API, so that
the LLM path runs without a key.
"""
