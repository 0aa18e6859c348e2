"""Private parts of TRL that SFT uses, separate from `trl_internals` because TRL's GRPO imports vLLM.

Gains of the patches, measured as in `trl_internals`:

- `prepare`: on a CPU, the head computes logits only at labels, not for prompts and observations: SFT of 8 rows takes
  0.11 s instead of 0.16 s.
- `RightPaddedTrainer`: no gain on a CPU. On a GPU, attention without a mask can use a fused causal kernel and allocates
  no mask of T x T, which rows of 16,384 tokens need.
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
from arenarl.rollout.policy import freeze_unread_parts
from arenarl.system.errors import UserError

WRITTEN_FOR = "1.16"  # TRL's version


def prepare() -> None:
    """Patch TRL's head to compute only labelled positions, before a trainer is made.

    On devices without Triton, TRL's head computes every position, because fixed shapes compile once. Here most
    positions are prompts, observations and padding. Raises UserError if another version of TRL is installed.
    """
    if not version("trl").startswith(f"{WRITTEN_FOR}."):
        raise UserError(
            f"arenarl/training/trl_internals.py was written for TRL {WRITTEN_FOR}, and {version('trl')} is installed: "
            f"pip install 'trl=={WRITTEN_FOR}.*'"
        )
    prepare_attention()
    utils._use_triton = lambda device: True  # only the head reads it here; the kernels read their own module's


class RightPaddedTrainer(SFTTrainer):
    """`SFTTrainer` that passes no attention mask: its rows are padded on the right, so the loss is the same.

    A GPU's fastest kernels support only the causal mask. Tokens are still counted by the mask. The auxiliary loss of
    mixtures of experts needs the mask, so such models keep it.
    """

    def __init__(self, **options: Any):
        prepare()
        super().__init__(**options)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        def unmasked(**arguments: Any) -> Any:
            return model(**arguments | {"attention_mask": None})

        return super().compute_loss(model if self.aux_loss_enabled else unmasked, inputs, *args, **kwargs)


def prepare_gradients(trainer: Trainer) -> None:
    """Freeze the parts that read no text, and let DDP store gradients inside its averaging buckets, which saves four
    bytes per parameter and changes no value."""
    freeze_unread_parts(trainer.model)
    trainer.accelerator.ddp_handler.gradient_as_bucket_view = True


@contextmanager
def lent_model(engine: RolloutEngine, trainer: Trainer) -> Iterator[None]:
    """Let the engine generate with the trainer's model; ZeRO-3 gathers it once here instead of once per turn."""
    with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model:
        was_training = model.training
        model.eval()
        engine.generator.model = model
        yield
        model.train(was_training)
