"""SFT without a mask: padding comes behind a row's end, where causal attention does not see it.

Told of no mask, attention leaves out the half of all pairs that come later, and a GPU's fastest kernels,
which know no other mask, can be had.
"""

from typing import Any

from trl import SFTTrainer

from arenarl.rollout.attention import prepare_attention
from arenarl.training.fused_head import score_labels_only


class RightPaddedTrainer(SFTTrainer):
    """`SFTTrainer` whose loss is the same, of rows that its collator has padded on the right. It still counts tokens by
    the mask, and so does the loss that experts share, which keeps it."""

    def __init__(self, *args: Any, **kwargs: Any):
        prepare_attention()
        score_labels_only()
        super().__init__(*args, **kwargs)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        def unmasked(**named: Any) -> Any:
            return model(**named | {"attention_mask": None})

        return super().compute_loss(model if self.aux_loss_enabled else unmasked, inputs, *args, **kwargs)
