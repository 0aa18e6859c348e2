"""Private parts of TRL that SFT uses, separate from `trl_internals` because TRL's GRPO imports vLLM.

Gains of the patches, measured as in `trl_internals`:

- `prepare`: on a CPU, the head computes logits only at labels, not for prompts and observations: SFT of 8 rows takes
  0.11 s instead of 0.16 s.
- `RightPaddedTrainer`: no gain on a CPU. On a GPU, attention without a mask can use a fused causal kernel and allocates
  no mask of T x T, which rows of 16,384 tokens need.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from accelerate import DistributedType
from peft import PeftModel
from transformers import PreTrainedModel, Trainer, TrainerCallback
from trl import SFTTrainer
from trl.models import unwrap_model_for_generation
from trl.trainer import utils

from arenarl.rollout.attention import prepare_attention
from arenarl.rollout.engine import RolloutEngine
from arenarl.rollout.kv_cache import plain_output
from arenarl.rollout.policy import freeze_unread_parts, load_model
from arenarl.system.errors import UserError, explain, one_line

WRITTEN_FOR = "1.16"  # TRL's version
# Largest error of TRL's head, as a share of the logits' standard deviation. Wrong heads have .9 or more with weights of
# usual size. Right heads have at most .004 in bfloat16 on a CPU; where a GPU rounds the two passes differently, a
# pretrained model's logits of 30 can differ by .05 of it (computed, not measured). Our choice
TOLERANCE = 0.3


def prepare() -> None:
    """Patch TRL's head to compute only labelled positions, before a trainer is made.

    On devices without Triton, TRL's head computes every position, because fixed shapes compile once. Here most
    positions are prompts, observations and padding. Raises UserError if another version of TRL is installed.
    """
    if not version("trl").startswith(f"{WRITTEN_FOR}."):
        raise UserError(
            f"arenarl/training was written for TRL {WRITTEN_FOR}, and {version('trl')} is installed: "
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


def prepare_training(trainer: Trainer) -> None:
    """Try TRL's head before the first step, load all weights on resuming, and prepare for DDP.

    DDP would wait for gradients of parts that read no text, so they are frozen. It stores gradients inside its
    averaging buckets, which saves four bytes per parameter and changes no value.
    """
    if trainer.accelerator.distributed_type not in (DistributedType.NO, DistributedType.DEEPSPEED):
        freeze_unread_parts(trainer.model)  # only then: the optimizers of earlier checkpoints have them
    if not isinstance(trainer.model, PeftModel):
        trainer._load_from_checkpoint = partial(load_weights, trainer.model)
    trainer.callback_handler.callbacks.insert(0, HeadTrial(trainer))  # before the first evaluation
    trainer.accelerator.ddp_handler.gradient_as_bucket_view = True


def load_weights(model: PreTrainedModel, folder: str) -> None:
    """Load a checkpoint's weights as other stages do.

    transformers' trainer skips weights that have another name in the file than in the model, as those of Gemma 3 and of
    the experts of Qwen3-MoE and Mixtral. DeepSpeed loads its own files.
    """
    model.load_state_dict(load_model(folder, model.dtype).state_dict())


class HeadTrial(TrainerCallback):
    """Raises UserError before training if TRL's head has other log-probabilities than the model's own logits.

    TRL's head multiplies hidden states by the output embedding. It knows most scales and caps of logits, but not those
    of RecurrentGemma or xLSTM, nor layers between the two as in BERT. Such a model would learn another distribution
    than it generates from. Under ZeRO-3 all processes try it together, once the trainer has the weights.
    """

    def __init__(self, trainer: Trainer):
        self.trainer = trainer

    @torch.no_grad()
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model, was_training = self.trainer.model, self.trainer.model.training
        name = (model.config.architectures or [type(model).__name__])[0]
        ids_BT = (torch.arange(5, 25, device=model.device) % model.config.get_text_config().vocab_size)[None]
        try:
            model.eval()
            logits_TV = model(input_ids=ids_BT, use_cache=False, **plain_output(model)).logits[0, :-1].float()
            log_probs_T = model(input_ids=ids_BT, labels=ids_BT, fused_lm_head=True).log_probs[0].float()
        except Exception as error:
            if explain(error):  # not the architecture's fault, such as too little memory
                raise
            raise UserError(f"{name} fails in TRL's head ({one_line(error)}); name another model") from error
        finally:
            model.train(was_training)
        logits_TV /= getattr(self.trainer, "temperature", 1.0)
        expected_T = logits_TV.log_softmax(dim=-1).gather(1, ids_BT[0, 1:, None])[:, 0]
        error, spread = (log_probs_T - expected_T).square().mean().sqrt(), logits_TV.std(dim=-1).mean()
        if not error <= TOLERANCE * spread + 1e-5:  # rounding, where the output embedding starts at 0
            share = f"(error {error / spread:.2g})"
            problem = f"has other log-probabilities in training (TRL's head) than its logits {share}"
            raise UserError(f"{name} {problem}, so it would learn another distribution; name another model")


@contextmanager
def lent_model(engine: RolloutEngine, trainer: Trainer) -> Iterator[None]:
    """Let the engine generate with the trainer's model; ZeRO-3 gathers it once here instead of once per turn."""
    with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model:
        was_training = model.training
        model.eval()
        engine.generator.model = model
        yield
        model.train(was_training)
