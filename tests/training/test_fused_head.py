import pytest
from trl import SFTConfig, SFTTrainer
from trl.kernels import chunked_logprob
from trl.trainer import utils

from arenarl.rollout.policy import lora_config
from arenarl.training.sft_data import tokenize_trajectories
from arenarl.training.trl_internals import RightPaddedTrainer

KEYS = ("loss", "grad_norm", "entropy", "mean_token_accuracy", "num_tokens")


@pytest.mark.parametrize("lora_rank", [0, 4], ids=["whole", "LoRA"])
def test_training_is_trls_with_a_head_that_sees_fewer_positions_and_no_mask(
    sft_path, tokenizer, policy_path, tmp_path, monkeypatch, lora_rank
):
    dataset = tokenize_trajectories(sft_path, tokenizer, None, 4096).select(range(24))
    arguments = {
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "per_device_train_batch_size": 4,
        "bf16": False,
        "logging_steps": 1,
    }

    def logged(make):
        trainer = make(
            model=policy_path,
            args=SFTConfig(str(tmp_path), num_train_epochs=1, learning_rate=1e-3, **arguments),
            train_dataset=dataset,
            processing_class=tokenizer,
            peft_config=lora_config(lora_rank),
        )
        trainer.train()
        return [[entry[key] for key in KEYS] for entry in trainer.state.log_history[:-1]]

    monkeypatch.setattr(utils, "_use_triton", chunked_logprob._use_triton)
    expected = logged(SFTTrainer)
    assert len(expected) == 6 and logged(RightPaddedTrainer) == [pytest.approx(values, rel=1e-3) for values in expected]
