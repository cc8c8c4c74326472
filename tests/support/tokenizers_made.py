"""Small tokenizers of every kind that language models come with, made on the spot."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

KINDS = ("byte_level", "llama2", "gemma", "metaspace", "plain", "word_piece")

SPECIAL = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "naïve café, crème brûlée; ",
    "I'm here. You're there!\n\nStop now.",
    "日本語 テスト 👩‍🚀🚀",
    "  indented   text  ",
]


def make_raw(kind: str) -> Tokenizer:
    """A trained tokenizer of about 400 tokens; ids 0..4 are special."""
    raw: Any = {
        "byte_level": _byte_level,
        "llama2": _llama2,
        "gemma": _gemma,
        "metaspace": _metaspace,
        "plain": _plain,
        "word_piece": _word_piece,
    }[kind]()
    # An ordinary added token, and one with a space in it.
    raw.add_tokens([AddedToken("<think>", special=False), AddedToken("two words", special=False)])
    return raw


def save(raw: Tokenizer, directory: Path, **config: Any) -> Path:
    """Write the files of a tokenizer's directory."""
    directory.mkdir(parents=True, exist_ok=True)
    raw.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast", **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return directory


def add_bos(raw: Tokenizer) -> Tokenizer:
    """Let the tokenizer put BOS before every text."""
    raw.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", raw.token_to_id("<s>"))]
    )
    return raw


def _train(raw: Tokenizer, **options: Any) -> Tokenizer:
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=list(SPECIAL), show_progress=False, **options)
    raw.train_from_iterator(CORPUS * 3, trainer)
    return raw


def _byte_level() -> Tokenizer:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return _train(raw, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def _with_byte_fallback(raw: Tokenizer) -> Tokenizer:
    """The trained BPE again, with tokens for the 256 bytes, as SentencePiece models have them."""
    state = json.loads(raw.to_str())
    vocab = state["model"]["vocab"]
    for byte in range(256):
        vocab.setdefault(f"<0x{byte:02X}>", len(vocab))
    state["model"] |= {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    return Tokenizer.from_str(json.dumps(state))


def _llama2() -> Tokenizer:
    raw = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _with_byte_fallback(_train(raw))


def _gemma() -> Tokenizer:
    raw = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    raw.normalizer = normalizers.Replace(" ", "▁")
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return _with_byte_fallback(_train(raw))


def _metaspace() -> Tokenizer:
    raw = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    raw.decoder = decoders.Metaspace(prepend_scheme="always")
    return _train(raw)


def _word_piece() -> Tokenizer:
    raw = Tokenizer(models.WordPiece(unk_token="<unk>"))
    raw.normalizer = normalizers.BertNormalizer(lowercase=False)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=list(SPECIAL), show_progress=False)
    raw.train_from_iterator(CORPUS * 3, trainer)
    return raw


def write_words(directory: Path, words: Sequence[str]) -> Path:
    """The tokenizer of a BERT that knows these words: ids 0..4 are special, those of words follow."""
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    raw = Tokenizer(
        models.WordPiece({token: index for index, token in enumerate((*special, *words))}, unk_token="[UNK]")
    )
    raw.add_special_tokens(list(special))
    raw.normalizer = normalizers.BertNormalizer()
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.WordPiece()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokens = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    return save(raw, directory, bos_token=None, eos_token=None, unk_token="[UNK]", **tokens)


def _plain() -> Tokenizer:
    raw = Tokenizer(models.BPE(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return _train(raw)
