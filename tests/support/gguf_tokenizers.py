"""Tokenizers of the kinds that GGUF files can carry, and texts on which they differ."""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from penstock.bundled.registry import find_bundled
from penstock.text.gguf_tokenizer import _PATTERNS
from support.tokenizers_made import CORPUS, SPECIAL, make_raw, save

_DEEPSEEK = ("deepseek-llm", "deepseek-coder")
GGUF_KINDS = (
    *("byte_level", "llama2", "gemma", "llama-bpe", "qwen2", "haiku", "tekken", "gpt-4o", "deepseek-v3"),
    *_DEEPSEEK,
)
AWKWARD = [
    "", " ", "  ", "a", " a", "a ", "the quick brown fox", "The QUICK  brown\tfox\r\n\r\n jumps", "I'm, you're, HE'LL",
    "1234567890 12 345 6,789.01", "naïve café, e\u0301tude", "日本語 テスト 👩‍🚀🚀", "\u00a0\u2003x\u200b",
    "<s>the</s> <|im_start|>",
    "two words<think>", "\n\n\n", "   indented\n   text   ", "a\u0000b", "▁▁ _", "()[]{}!!!???...\n", "ﬁ Ⅷ ½", "<0x41>",
    "東京12345年 ３４ ٣٤ ½², 한국어 中文ab", "Ծով ծով ქართული Ⴀ Ångström Ǆ ƻ ꭰ",
    "x👍🏽 👨‍👩‍👧e\u0301\u2028\r\r\n\t  y\u3000。 ",
]  # fmt: skip


def split_raw(named: str) -> Tokenizer:
    """One whose words are those of a published family."""
    raw = Tokenizer(models.BPE(ignore_merges=named in ("llama-bpe", "tekken")))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _PATTERNS[named]]
    if named in _DEEPSEEK:
        # Published ones have each digit by itself, so that no token has two; files of GGUF say it by a pattern.
        splits[-1] = pre_tokenizers.Digits(individual_digits=True)
    raw.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(False, use_regex=False)])
    if named == "qwen2":
        raw.normalizer = normalizers.NFC()
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=list(SPECIAL), show_progress=False, initial_alphabet=alphabet
    )
    raw.train_from_iterator([*CORPUS, *AWKWARD] * 3, trainer)
    raw.add_tokens([AddedToken("<think>", special=False), AddedToken("two words", special=False)])
    return raw


def folder_of(kind: str, path: Path) -> Path:
    if kind == "haiku":
        bundled = find_bundled("haiku")
        assert bundled is not None
        return bundled.installed()
    raw = split_raw(kind) if kind in _PATTERNS else make_raw(kind)
    content = json.loads(raw.to_str())
    for token in content["added_tokens"]:
        # A file does not say of a token that it is looked for in normalized text.
        token["normalized"] = False
    return save(Tokenizer.from_str(json.dumps(content)), path)
