"""A policy of random weights and any size that generates as many tokens as it may,
and a script that puts tool calls and answers into them."""

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen3ForCausalLM

from arenarl.config.schema import Config, ScratchConfig
from arenarl.domains.environments import make_environment
from arenarl.domains.travel.teacher import Teacher
from arenarl.plan import memory
from arenarl.rollout.generation import GeneratedTurn, TurnRequest
from arenarl.rollout.packaged_models import PACKAGED, folder_of
from arenarl.rollout.policy import build_scratch_model, load_model, load_tokenizer, scratch_config, train_tokenizer
from arenarl.training.sft_data import as_text
from arenarl.trajectory import Query

# beside `tiny`, which is the YAML's policy.scratch. Their tokenizer knows fewer tokens, and thinks nothing of the rest
SHAPES = {
    "qwen3-1.7b": memory.SHAPES["Qwen/Qwen3-1.7B"],
    "qwen3-8b": memory.SHAPES["Qwen/Qwen3-8B"],
}
Generate = Callable[[TurnRequest], Awaitable[GeneratedTurn]]
GOING_ON = 0.6  # share of its turns, but for the last, that call a tool; the others answer


class Script:
    """Writes over a generated turn, whose length it keeps:
    some of the policy's tokens as a thought, then a tool call or an answer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, generate: Generate, turns: int):
        def encode(text: str) -> list[int]:
            return tokenizer.encode(text, add_special_tokens=False)

        self.generate, self.turns = generate, turns
        self.head = encode("<think>\n")
        self.search = [
            *encode(
                '\n</think>\n\n<tool_call>\n{"name": "universal_search", "arguments": {"query": "cafe"}}\n</tool_call>'
            )
        ]
        self.answer = encode("\n</think>\n\n<answer>\nA cafe in Chengdu.\n</answer>")
        self.end, (self.filler, *_) = tokenizer.eos_token_id, encode(" cafe")
        self.header = encode("<|im_start|>assistant\n")
        self.ordinary = set(range(len(tokenizer))) - set(tokenizer.added_tokens_decoder)

    async def __call__(self, request: TurnRequest) -> GeneratedTurn:
        turn_ids = (await self.generate(request)).token_ids
        is_last = _count(self.header, request.token_ids) == self.turns
        goes_on = not is_last and random.Random(request.seed).random() < GOING_ON
        tail = [*(self.search if goes_on else self.answer), self.end]
        thought = turn_ids[len(self.head) : len(turn_ids) - len(tail)]
        return GeneratedTurn(
            [*self.head, *(token if token in self.ordinary else self.filler for token in thought), *tail]
        )


def _count(part: list[int], token_ids: list[int]) -> int:
    """
    >>> _count([1, 2], [1, 2, 1, 1, 2])
    2
    """
    return sum(token_ids[place : place + len(part)] == part for place in range(len(token_ids)))


def build_policy(
    config: Config, shape: str, queries: list[Query], folder: Path, layers: int | None = None
) -> tuple[str, int]:
    """Return a folder with a policy that never ends a turn, and its number of parameters.

    A packaged model keeps its weights and its tokenizer.
    Any other shape has random weights and a tokenizer of the embedded world's texts.

    Args:
        layers: keep only the first ones; None keeps all.
    """
    if shape in PACKAGED:
        model, tokenizer = load_model(folder_of(shape), config.policy.dtype), load_tokenizer(folder_of(shape))
    else:
        tokenizer = _tokenizer_of_the_world(config, queries)
        model = _random_model(config, shape, tokenizer)
    if layers:
        model.model.layers, model.config.num_hidden_layers = model.model.layers[:layers], layers
        if getattr(model.config, "layer_types", None):  # Llama's config has none
            model.config.layer_types = model.config.layer_types[:layers]
    _never_end(model, tokenizer.eos_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder), model.num_parameters()


def _tokenizer_of_the_world(config: Config, queries: list[Query]) -> PreTrainedTokenizerBase:
    environment = make_environment(config.environment, config.data.language)
    teacher = Teacher(environment.world, environment)
    taught = [teacher.solve(query, random.Random(index), 0.5) for index, query in enumerate(queries)]
    texts = [message["content"] for trajectory in taught for message in as_text(trajectory.messages)]
    return train_tokenizer(texts, environment.tools, config.policy.scratch.vocab_size)


def _random_model(config: Config, shape: str, tokenizer: PreTrainedTokenizerBase) -> Qwen3ForCausalLM:
    torch.manual_seed(config.seed)
    if shape not in SHAPES:
        return build_scratch_model(config.policy.scratch, tokenizer).to(getattr(torch, config.policy.dtype))
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # a GPU draws a billion numbers in a moment
        return build_shape(SHAPES[shape], tokenizer, config.policy.dtype)


def build_shape(shape: memory.Shape, tokenizer: PreTrainedTokenizerBase, dtype: str, **others: Any) -> Qwen3ForCausalLM:
    """Of random weights, with the shape's vocabulary, of which the tokenizer may know a part;
    `others` as in `scratch_config`."""
    sizes = (shape.hidden, shape.intermediate, shape.layers, shape.heads, shape.kv_heads, shape.head_dim)
    scratch = ScratchConfig(*sizes, rope_theta=1e6, max_positions=40960)
    return Qwen3ForCausalLM._from_config(
        scratch_config(scratch, tokenizer, vocab_size=shape.vocabulary, dtype=dtype, **others)
    )


@torch.no_grad()
def _never_end(model: PreTrainedModel, end: int) -> None:
    """Make the first dimension of the residual stream a constant, and point the end of a turn against it.

    A trained model's last norm divides that constant by about 40, so the weight against it is large.
    """
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[0] = layer.mlp.down_proj.weight[0] = 0
    model.model.embed_tokens.weight[:, 0] = model.lm_head.weight[:, 0] = 1
    model.lm_head.weight[end, 0] = -3000
