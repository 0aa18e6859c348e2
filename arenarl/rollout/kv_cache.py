"""A KV cache that outlives a turn, for the transformers back end: no token is encoded twice.

A `TrajectoryCache` keeps a trajectory's keys and values between turns. A `BatchCache` aligns the rows of a batch for
decoding and splits them again. A prompt that several trajectories share, as in a group, is encoded once. Only plain
attention can be cut at any token: a model with sliding windows or recurrent states encodes the whole prompt each turn.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from operator import itemgetter

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

# Tokens in one encoding pass, padding included; a longer row is a pass of its own. A smaller value pads less and takes
# less memory. Our choice.
ENCODED_AT_ONCE = 2048
ROOM = 32  # number of tokens by which a layer grows at a time. Our choice
Layer = tuple[torch.Tensor, torch.Tensor]  # keys and values


class TrajectoryCache:
    """A trajectory's `token_ids` (T,) and each layer's keys and values for them (KV heads, T, head dim)."""

    def __init__(self):
        self.token_ids: list[int] = []
        self.layers: list[Layer] = []

    def keep(self, token_ids: list[int], layers: list[Layer]) -> None:
        self.token_ids, self.layers = token_ids, layers

    def cut_to(self, prompt: list[int]) -> None:
        """Keep the longest prefix of the prompt, without its last token, whose logits the next step needs."""
        known = min(len(self.token_ids), len(prompt) - 1)
        if self.token_ids[:known] != prompt[:known]:
            known = next(place for place in range(known) if self.token_ids[place] != prompt[place])
        self.keep(prompt[:known], [(keys[:, :known], values[:, :known]) for keys, values in self.layers])


Row = tuple[list[int], TrajectoryCache]  # a prompt and its cache


class GrowingLayer(DynamicLayer):
    """A cache layer that grows by `ROOM` tokens at a time; transformers' own layer is copied at every token.
    Keys and values are (B, KV heads, T, head dim)."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, used: int):
        super().__init__()
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self._held = keys, values
        self.keys, self.values = keys[:, :, :used], values[:, :, :used]

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs) -> Layer:
        used = self.keys.shape[2]
        length = used + key_states.shape[2]
        if length > self._held[0].shape[2]:
            self._held = tuple(pad(states, (0, 0, 0, length + ROOM - used)) for states in (self.keys, self.values))
        for held, states in zip(self._held, (key_states, value_states), strict=True):
            held[:, :, used:length] = states
        self.keys, self.values = (held[:, :, :length] for held in self._held)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        super().reorder_cache(beam_idx)
        self._held = self.keys, self.values


class BatchCache:
    """The rows of a batch, right-aligned: all append in the same column; row b begins in column `starts_B[b]`."""

    def __init__(self, layers: Cache, starts: list[int], length: int, device: torch.device):
        self.layers, self.length = layers, length
        self.starts_B = torch.tensor(starts, device=device)

    def step(self, model: PreTrainedModel, tokens_B: torch.Tensor) -> torch.Tensor:
        """Append each row's next token; return the logits (B, V) after it."""
        columns, starts_B1 = torch.arange(self.length + 1, device=tokens_B.device), self.starts_B[:, None]
        mask, positions = (columns >= starts_B1).long(), self.length - starts_B1
        self.length += 1
        return _read(model, tokens_B[:, None], mask, positions, self.layers)[:, -1]

    def row(self, row: int, tokens: int) -> list[Layer]:
        """Return a copy of one row's keys and values for its first `tokens` tokens."""
        own = slice(start := int(self.starts_B[row]), start + tokens)
        return [(layer.keys[row, :, own].clone(), layer.values[row, :, own].clone()) for layer in self.layers.layers]

    def join(self, other: "BatchCache") -> None:
        """Append the other batch's rows, aligned on the right; columns that no row uses are dropped."""
        batches, longest = (self, other), max(self.length, other.length)
        starts_B = torch.cat([batch.starts_B + (longest - batch.length) for batch in batches])
        unused = int(starts_B.min())
        length, sizes = longest - unused, [len(batch.starts_B) for batch in batches]
        if length:
            held = [[(layer.keys, layer.values) for layer in batch.layers.layers if batch.length] for batch in batches]
            self.layers = _aligned(held, sizes, length)
        self.starts_B, self.length = starts_B - unused, length

    def select(self, rows: torch.Tensor) -> None:
        self.layers.reorder_cache(rows)  # unlike batch_select_indices, every kind of layer has it
        self.starts_B = self.starts_B[rows]


def _read(
    model: PreTrainedModel, ids_BT: torch.Tensor, mask: torch.Tensor | None, positions_BT: torch.Tensor, layers: Cache
) -> torch.Tensor:
    """Run the model on tokens that follow its cache; return the logits (B, 1, V) of the last token."""
    options = {"past_key_values": layers, "use_cache": True, "logits_to_keep": 1, **plain_output(model)}
    return model(input_ids=ids_BT, attention_mask=mask, position_ids=positions_BT, **options).logits


def plain_output(model: PreTrainedModel) -> dict[str, bool]:
    """Return model options that replace the checkpoint's: without router logits, whose loss works with no cache."""
    has_router = getattr(model.config.get_text_config(), "output_router_logits", None) is not None
    return {"return_dict": True} | ({"output_router_logits": False} if has_router else {})


def can_cut(model: PreTrainedModel) -> bool:
    """Return True if the model's cache can be cut at any token: every layer has plain attention."""
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)


def start_batch(model: PreTrainedModel, prompts: Sequence[list[int]], caches: Sequence[TrajectoryCache]) -> BatchCache:
    """Encode all but the last token of every prompt; store them in the caches if the model's cache can be cut."""
    return encode_and_keep(model, prompts, caches) if can_cut(model) else encode(model, prompts)


def encode_and_keep(
    model: PreTrainedModel, prompts: Sequence[list[int]], caches: Sequence[TrajectoryCache]
) -> BatchCache:
    """Encode the uncached tokens of every prompt, without its last token, and store them in its cache."""
    firsts: dict[tuple[int, ...], TrajectoryCache] = {}
    missing: list[Row] = []
    for prompt, cache in zip(prompts, caches, strict=True):
        cache.cut_to(prompt)
        if len(cache.token_ids) == len(prompt) - 1:
            continue
        if cache.token_ids or firsts.setdefault(tuple(prompt), cache) is cache:
            missing.append((prompt, cache))
    for part in _parts_of_similar_length(missing):
        _encode_rest(model, *zip(*part, strict=True))
    for prompt, cache in zip(prompts, caches, strict=True):
        if len(cache.token_ids) < len(prompt) - 1:
            first = firsts[tuple(prompt)]
            cache.keep(first.token_ids, first.layers)
    return _join(model, caches)


def _parts_of_similar_length(rows: list[Row]) -> Iterator[list[Row]]:
    """Yield the rows, fewest new tokens first, in parts of at most `ENCODED_AT_ONCE` new tokens with padding."""
    part: list[Row] = []
    new_tokens = [(len(prompt) - 1 - len(cache.token_ids), (prompt, cache)) for prompt, cache in rows]
    for new, row in sorted(new_tokens, key=itemgetter(0)):
        if part and (len(part) + 1) * new > ENCODED_AT_ONCE:
            yield part
            part = []
        part.append(row)
    if part:
        yield part


def _encode_rest(model: PreTrainedModel, prompts: Sequence[list[int]], caches: Sequence[TrajectoryCache]) -> None:
    """Encode the uncached tokens of several rows in one pass: cached columns right-aligned, new columns
    left-aligned."""
    batch, device = _join(model, caches), model.device
    new = [prompt[len(cache.token_ids) : -1] for prompt, cache in zip(prompts, caches, strict=True)]
    width, last_B1 = max(map(len, new)), torch.tensor([[len(ids) - 1] for ids in new], device=device)
    known, columns = torch.arange(batch.length, device=device), torch.arange(width, device=device)
    mask = torch.cat([known >= batch.starts_B[:, None], columns <= last_B1], dim=1).long()
    mask = mask if batch.length else None  # causal attention does not see the padding after a row
    positions = (batch.length - batch.starts_B)[:, None] + torch.minimum(columns, last_B1)
    ids = torch.tensor([ids + [0] * (width - len(ids)) for ids in new], device=device)
    _read(model, ids, mask, positions, batch.layers)
    for row, (prompt, cache) in enumerate(zip(prompts, caches, strict=True)):
        cache.keep(prompt[:-1], batch.row(row, len(prompt) - 1))


def _join(model: PreTrainedModel, caches: Sequence[TrajectoryCache]) -> BatchCache:
    longest = max(len(cache.token_ids) for cache in caches)
    starts = [longest - len(cache.token_ids) for cache in caches]
    if not longest:
        return BatchCache(DynamicCache(config=model.config), starts, 0, model.device)
    held = [[(keys[None], values[None]) for keys, values in cache.layers] for cache in caches]
    return BatchCache(_aligned(held, [1] * len(caches), longest), starts, longest, model.device)


def _aligned(held: Sequence[list[Layer]], sizes: list[int], length: int) -> Cache:
    """Stack layers of several batches, aligned on the right, in a cache of `length` columns.

    `held` has each batch's layers, none for a batch without tokens; `sizes` are its numbers of rows.
    """
    layers = []
    for parts in zip_longest(*held):  # a layer of each batch, None for a batch without tokens
        joined = []
        for kind in (0, 1):  # keys, then values
            example = next(part[kind] for part in parts if part)
            states = example.new_zeros(sum(sizes), example.shape[1], length + ROOM, example.shape[3])
            for part, rows in zip(parts, states.split(sizes), strict=True):
                if part:
                    columns = min(part[kind].shape[2], length)
                    rows[:, :, length - columns : length] = part[kind][:, :, part[kind].shape[2] - columns :]
            joined.append(states)
        layers.append(GrowingLayer(*joined, length))
    return Cache(layers=layers)


def encode(model: PreTrainedModel, prompts: Sequence[list[int]]) -> BatchCache:
    """Encode all but the last token of every prompt, for a model of any architecture."""
    longest = max(map(len, prompts)) - 1
    starts = [longest + 1 - len(prompt) for prompt in prompts]
    batch = BatchCache(DynamicCache(config=model.config), starts, longest, model.device)
    if longest:
        columns, starts_B1 = torch.arange(longest, device=model.device), batch.starts_B[:, None]
        rows = [[0] * start + prompt[:-1] for start, prompt in zip(starts, prompts, strict=True)]
        ids, positions = torch.tensor(rows, device=model.device), (columns - starts_B1).clamp(min=0)
        _read(model, ids, (columns >= starts_B1).long(), positions, batch.layers)
    return batch
