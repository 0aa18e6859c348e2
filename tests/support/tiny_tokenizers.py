"""Tiny tokenizers of the kinds that models have, trained in milliseconds, with `<unk>`, `<s>` and `</s>`."""

from policies import ANSWER, call
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

KINDS = ("bytes", "metaspace first", "metaspace always", "llama2", "unigram", "unigram lower")
_SPECIAL = ["<unk>", "<s>", "</s>"]
_PLAIN = "".join(map(chr, range(33, 127)))
_TEXTS = [ANSWER, call("lookup", x="Lotus Park"), "the quick brown fox", " ".join(_PLAIN), _PLAIN] * 3


def tiny_tokenizer(kind, template):
    """Return a tokenizer of one of `KINDS`: byte-level BPE, BPE with metaspaces as pre-tokenizer (at the first word or
    at every piece) or as normalizer (Llama 2), or SentencePiece's Unigram, which normalises characters."""
    options = {"special_tokens": _SPECIAL, "show_progress": False, "initial_alphabet": ["\n", *_PLAIN]}
    if kind.startswith("unigram"):
        tokenizer = Tokenizer(models.Unigram())
        cases = [normalizers.Lowercase()] if kind == "unigram lower" else []
        blanks = normalizers.Replace(Regex(" {2,}"), " ")
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), *cases, blanks])
        trainer = trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", **options)
    else:
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
        trainer = trainers.BpeTrainer(vocab_size=420, **options)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    if kind == "bytes":
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
        trainer.initial_alphabet = pre_tokenizers.ByteLevel.alphabet()
    elif kind == "metaspace first":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    elif kind == "llama2":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
        blanks = [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        tokenizer.decoder = decoders.Sequence(blanks)
    # without line breaks, so that none merges with a word, as in real tokenizers
    tokenizer.train_from_iterator([line for text in _TEXTS for line in text.split("\n")], trainer)
    tokens = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "<s>", "pad_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **tokens)
