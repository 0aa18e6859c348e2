"""TRL's output head, on a CPU too, computes logits only where a label asks for them:
of the policy's own tokens, in SFT and in RL."""

from trl.trainer import utils


def score_labels_only() -> None:
    """To be called before training. TRL's head scores every position of a device without Triton, to spare those that
    compile for a shape; here most positions are prompts, observations and padding."""
    utils._use_triton = lambda device: True  # which only the head asks here; the kernels ask their own module
