"""Private parts of TRL that SFT uses. They stand apart from `trl_internals`, because TRL's GRPO imports vLLM.

What each patch gains, measured as there:

- `prepare`: on a CPU the head computes logits only where a label asks for them, not for prompts and observations: SFT
  of 8 rows takes 0.11 s in place of 0.16.
- `RightPaddedTrainer`: nothing on a CPU. On a GPU, attention without a mask can take a fused causal kernel, and no mask
  of T x T is held, which rows of 16,384 tokens need.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from transformers import Trainer
from trl import SFTTrainer
from trl.models import unwrap_model_for_generation
from trl.trainer import utils

from arenarl.rollout.attention import prepare_attention
from arenarl.rollout.engine import RolloutEngine
from arenarl.system.errors import UserError

WRITTEN_FOR = "1.16"  # TRL's version


def prepare() -> None:
    """To be called before a trainer is made.

    TRL's head scores every position of a device without Triton, to spare those that compile for a shape; here most
    positions are prompts, observations and padding.

    Raises:
        UserError: another version of TRL is installed than this module was written for.
    """
    if not version("trl").startswith(f"{WRITTEN_FOR}."):
        raise UserError(
            f"arenarl/training/trl_internals.py was written for TRL {WRITTEN_FOR}, and {version('trl')} is installed: "
            f"pip install 'trl=={WRITTEN_FOR}.*'"
        )
    prepare_attention()
    utils._use_triton = lambda device: True  # which only the head asks here; the kernels ask their own module


class RightPaddedTrainer(SFTTrainer):
    """`SFTTrainer` whose loss is the same, of rows that its collator has padded on the right, without a mask: a GPU's
    fastest kernels know no other than the causal one. It still counts tokens by the mask, and so does the loss that
    experts share, which keeps it."""

    def __init__(self, **options: Any):
        prepare()
        super().__init__(**options)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        def unmasked(**named: Any) -> Any:
            return model(**named | {"attention_mask": None})

        return super().compute_loss(model if self.aux_loss_enabled else unmasked, inputs, *args, **kwargs)


@contextmanager
def lent_model(engine: RolloutEngine, trainer: Trainer) -> Iterator[None]:
    """The engine generates with the trainer's own model, gathered once under ZeRO-3, and not once a turn."""
    with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model:
        was_training = model.training
        model.eval()
        engine.generator.model = model
        yield
        model.train(was_training)
