"""trajectories → verdicts: what a judge is, the embedded one with its noise, the LLM one, and the verifier of known answers.

Training and evaluation ask the same code. Open `judge` first: a verdict is scores by the rubric's dimensions, or None, never a guess.
`prompts` is what an LLM judge sees; `server` serves the embedded judge as an LLM's API, so that the LLM path runs without a key.
"""
