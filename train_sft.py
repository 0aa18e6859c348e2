"""Cold-start SFT: teacher trajectories → a policy that calls tools and answers in the required form (Section 6.1,
Appendix A).

    torchrun --nproc_per_node 2 train_sft.py --config configs/quickstart.yaml

Runs TRL's SFTTrainer with the loss on assistant turns only, and DeepSpeed ZeRO-3 by `sft.deepspeed`. On GPUs, use
more processes. The policy is saved to runs/<run>/sft as an ordinary Hugging Face folder. After a crash, the same
command resumes from the last checkpoint.
"""

import math
from pathlib import Path

from arenarl.config.command_line import add_check, parse_arguments
from arenarl.config.schema import Config
from arenarl.report.provenance import provenance
from arenarl.system.errors import run_cli
from arenarl.system.progress import is_main_process
from arenarl.training.preflight import preflight_sft


def main() -> None:
    config, arguments = parse_arguments(__doc__, add_check)
    folder = preflight_sft(config, arguments, provenance)
    if folder is None:
        return

    # after all checks: loading TRL takes seconds
    from arenarl.domains.environments import environment_maker
    from arenarl.rollout.instances import temporary_environment
    from arenarl.rollout.policy import load_tokenizer, lora_config, save_policy, sequence_limit
    from arenarl.rollout.scratch_policy import prepare_initial_policy
    from arenarl.rollout.system_prompt import system_prompt
    from arenarl.run.checkpoints import CheckpointMarker, TrainingBar, last_checkpoint
    from arenarl.run.timing import timed
    from arenarl.run.tracking import start_tracking
    from arenarl.training import sft_data
    from arenarl.training.sft_internals import RightPaddedTrainer, prepare_training

    data, actions = Path(config.data.folder) / "sft.jsonl", config.environment.actions
    start_tracking(config, folder)
    with timed(folder, "sft") as stopwatch:
        training = sft_arguments(config, folder)
        make_environment = environment_maker(config.environment, config.data.language, limits=config.judge)
        with temporary_environment(make_environment) as environment:
            tools = environment.tools
        with training.main_process_first(local=False):  # the main process builds the tiny policy, the others load it
            texts = sft_data.training_texts(data, actions)
            start = prepare_initial_policy(config.policy, folder / "initial", texts, tools, config.seed)
        tokenizer = load_tokenizer(start)
        schemas = tools if config.environment.schemas_in_prompt and actions == "tool_calls" else None
        system = system_prompt(config, "sft")
        with training.main_process_first(local=False):  # the main process tokenizes, the others open its file
            dataset = sft_data.tokenize_trajectories(
                data, tokenizer, schemas, config.sft.max_length, system, actions, folder / "tokens"
            )
        if is_main_process():
            sft_data.count_cut(dataset, config.sft.max_length, folder / "data.json")
            if schemas is None:
                sft_data.warn_of_untaught(data, tools)
        sft_data.check_lengths(dataset, config.sft.max_length, config.rollout.max_tokens, sequence_limit(start))
        step_rows = config.sft.batch_size * config.sft.gradient_accumulation
        trainer = RightPaddedTrainer(
            model=start,
            args=training,
            train_dataset=sft_data.in_training_order(dataset, config.sft.epochs, step_rows, config.seed),
            processing_class=tokenizer,
            callbacks=[CheckpointMarker(stopwatch)],
            peft_config=lora_config(config.policy.lora_rank),
        )
        prepare_training(trainer)
        bar = TrainingBar("sft")
        bar.attach(trainer)
        if config.sft.stop_at_valid is not None:
            from arenarl.training.sft_stop import StopAtValid

            StopAtValid(config, tokenizer, make_environment, bar.note).attach(trainer)
        trainer.train(resume_from_checkpoint=last_checkpoint(folder, "each step's rows"))
        save_policy(trainer, folder)


def sft_arguments(config: Config, folder: Path):
    """Return TRL's arguments for the cold start (Appendix A). Starts the process group."""
    from trl import SFTConfig

    from arenarl.run.trainer_arguments import clip_norm, common_arguments, deepspeed_file, on_one_gpu, start_deepspeed

    sft = config.sft
    arguments = SFTConfig(
        **common_arguments(config, folder),
        num_train_epochs=1,  # the dataset contains all epochs
        learning_rate=sft.learning_rate,
        lr_scheduler_type=sft.lr_scheduler,
        warmup_steps=sft.warmup_ratio,  # a share of all steps if below 1
        weight_decay=sft.weight_decay,
        adam_beta2=sft.adam_beta2,
        max_grad_norm=clip_norm(sft.deepspeed, 1.0),
        per_device_train_batch_size=sft.batch_size,
        gradient_accumulation_steps=sft.gradient_accumulation,
        train_sampling_strategy="sequential",
        dataset_kwargs={"skip_prepare_dataset": True},  # already tokenized and truncated
        deepspeed=deepspeed_file(sft.deepspeed),
        include_num_input_tokens_seen="non_padding",  # for tokens per second in the log
        logging_steps=math.gcd(10, sft.save_steps),  # no logged mean may span a checkpoint
        save_steps=sft.save_steps,
    )
    if sft.deepspeed:
        start_deepspeed()
    return on_one_gpu(arguments)


if __name__ == "__main__":
    run_cli(main)
