"""TRL's own GRPOTrainer, rewarded by a tournament: without this repository's configs, data or rollouts.

    python examples/trl_tournament.py --model Qwen/Qwen3-0.6B --prompts prompts.jsonl --judge openai \\
        --rubric "Is the poem vivid, and does it rhyme?"

A line of prompts.jsonl: {"prompt": [{"role": "user", "content": "Write a poem about rain."}]}. `pip install -e .` makes
arenarl importable elsewhere; on several GPUs, start it with accelerate or torchrun.
"""

import argparse

import torch
from datasets import load_dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from arenarl import tournament_reward
from arenarl.system.errors import run_cli


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a hub name, or a folder")
    parser.add_argument("--prompts", required=True, help="JSONL with a column named prompt")
    parser.add_argument("--judge", default="openai", help="a name in configs/judges, or a YAML of that form")
    parser.add_argument("--rubric", help="the judging criteria: text, or a YAML like those in configs/rubrics")
    parser.add_argument("--topology", default="seeded_single_elimination")
    parser.add_argument("--num-generations", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=512, help="maximum tokens per completion")
    parser.add_argument("--out", default="runs/trl_tournament")
    arguments = parser.parse_args()

    size, tokenizer = arguments.num_generations, AutoTokenizer.from_pretrained(arguments.model, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    reward = tournament_reward(
        arguments.judge,
        num_generations=size,
        rubric=arguments.rubric,
        topology=arguments.topology,
        # a completion without one was cut at max_completion_length
        turn_ends={tokenizer.eos_token_id, tokenizer.pad_token_id},
    )
    trainer = GRPOTrainer(
        model=arguments.model,
        reward_funcs=reward,
        processing_class=tokenizer,
        args=GRPOConfig(
            output_dir=arguments.out,
            num_generations=size,
            per_device_train_batch_size=size,
            max_steps=arguments.steps,
            max_completion_length=arguments.tokens,
            use_cpu=not torch.cuda.is_available(),
            logging_steps=1,
            report_to="none",
        ),
        train_dataset=load_dataset("json", data_files=arguments.prompts, split="train"),
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    run_cli(main, goes_on=False)
