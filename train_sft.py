"""Cold-start SFT: teacher trajectories → a policy that calls tools and answers in the required form (Section 6.1, Appendix A).

    torchrun --nproc_per_node 2 train_sft.py --config configs/quickstart.yaml

TRL's SFTTrainer, loss on assistant turns only, DeepSpeed ZeRO-3 through `sft.deepspeed`; on GPUs the same with more processes.
The policy lands in runs/<run>/sft as an ordinary Hugging Face folder. Start it again after a crash: it goes on from the last
checkpoint.
"""

import os
from pathlib import Path

from arenarl.config import Config, UserError, add_check, parse_arguments
from arenarl.runs import guarded, is_done, last_checkpoint, start_stage, timed


def main() -> None:
    config, arguments = parse_arguments(__doc__, add_check)
    data = Path(config.data.folder) / "sft.jsonl"
    if not data.is_file():
        raise UserError(f"{data} does not exist; make it with: python data/prepare.py travel --config <this YAML>")
    if config.sft.deepspeed and not Path(config.sft.deepspeed).is_file():
        raise UserError(f"sft.deepspeed={config.sft.deepspeed} does not exist; name a DeepSpeed JSON or set it to null")
    if config.sft.deepspeed and "RANK" not in os.environ and not arguments.check:
        raise UserError("ZeRO-3 needs a launcher: torchrun --nproc_per_node 2 train_sft.py …, or --set sft.deepspeed=null for one process")

    from trl import SFTTrainer  # after the checks: loading torch and TRL takes seconds

    from arenarl.build import build_environment, lora_config
    from arenarl.policy import load_tokenizer, prepare_initial_policy, require_model, save_policy
    from arenarl.sft_data import count_cut, tokenize_trajectories, training_texts

    if config.policy.model:
        require_model(config.policy.model)
        load_tokenizer(config.policy.model)
    folder = start_stage(config, "sft")
    if is_done(folder) or arguments.check:
        return
    with timed(folder, "sft"):
        training = sft_arguments(config, folder)
        tools = build_environment(config).tools
        with training.main_process_first(local=False):  # one builds the tiny policy, the others read what it saved
            start = prepare_initial_policy(config.policy, folder / "initial", training_texts(data), tools, config.seed)
        tokenizer = load_tokenizer(start)
        dataset = tokenize_trajectories(data, tokenizer, tools if config.environment.schemas_in_prompt else None, config.sft.max_length)
        if training.process_index == 0:
            count_cut(dataset, config.sft.max_length, folder / "data.json")
        trainer = SFTTrainer(
            model=start,
            args=training,
            train_dataset=dataset,
            processing_class=tokenizer,
            peft_config=lora_config(config),
        )
        trainer.train(resume_from_checkpoint=last_checkpoint(folder))
        save_policy(trainer, folder)


def sft_arguments(config: Config, folder: Path):
    """TRL's arguments for the cold start (Appendix A). Starts the process group."""
    import torch
    from trl import SFTConfig

    sft = config.sft
    arguments = SFTConfig(
        output_dir=str(folder),
        use_cpu=not torch.cuda.is_available(),
        bf16=config.policy.dtype == "bfloat16",
        seed=config.seed,
        num_train_epochs=sft.epochs,
        learning_rate=sft.learning_rate,
        lr_scheduler_type=sft.lr_scheduler,
        warmup_steps=sft.warmup_ratio,  # below 1 it is a share
        weight_decay=sft.weight_decay,
        optim="adamw_torch",
        per_device_train_batch_size=sft.batch_size,
        gradient_accumulation_steps=sft.gradient_accumulation,
        train_sampling_strategy="group_by_length",
        max_length=sft.max_length,
        model_init_kwargs={"dtype": config.policy.dtype},
        gradient_checkpointing=config.policy.gradient_checkpointing,
        deepspeed=sft.deepspeed,
        logging_steps=10,
        save_steps=sft.save_steps,
        save_total_limit=2,
        report_to=[] if config.wandb.mode == "disabled" else ["wandb"],
    )
    if sft.deepspeed:
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # half a minute of compiling, for an inference-only collective
        deepspeed.init_distributed()  # before ZeRO-3 loads the model in parts: it must know how many processes there are
    return arguments


if __name__ == "__main__":
    guarded(main)
