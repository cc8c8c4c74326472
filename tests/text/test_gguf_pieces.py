"""Tokenizers of encoders in GGUF files encode as those that they came from."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from penstock.core.errors import TokenizerError
from penstock.loading.gguf import read_gguf
from penstock.text.gguf_tokenizer import gguf_tokenizer
from penstock.text.tokenizer import load_tokenizer
from support.encoders_made import write_tokenizer
from support.gguf_files import finish
from support.gguf_tokenizers import AWKWARD
from support.tokenizers_made import CORPUS, save

TEXTS = [*AWKWARD, "The QUICK brown Fox jumps: naïve cafés", "[CLS] [MASK] [unused1]"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def word_pieces(folder: Path, *, lowercase: bool) -> Path:
    raw = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False)
    raw.train_from_iterator(["The QUICK Brown fox", *CORPUS] * 3, trainer)
    around = [("[CLS]", 2), ("[SEP]", 3)]
    raw.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    return save(raw, folder, bos_token=None, eos_token=None, cls_token="[CLS]", sep_token="[SEP]")


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_pieces(tmp_path: Path, lowercase: bool) -> None:
    folder = word_pieces(tmp_path / "model", lowercase=lowercase)
    original, file = load_tokenizer(folder), tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(file, "bert")
    write_tokenizer(writer, folder)
    finish(writer)
    metadata = dict(read_gguf(file).metadata)
    found = gguf_tokenizer(metadata, file)
    assert found is not None and found.added == original.added == (1, 1)
    for text in TEXTS:
        for special in (False, True):
            assert found.encode(text, special) == original.encode(text, special), text
        ids = original.encode(text)
        assert found.decode(ids, True) == original.decode(ids, True), text
    # What the file says comes before what its pieces look like.
    other = gguf_tokenizer({**metadata, "tokenizer.ggml.normalizer.lowercase": not lowercase}, file)
    assert other is not None
    assert any(other.encode(text) != original.encode(text) for text in TEXTS)
    bare = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_sep_token": False}
    alone = gguf_tokenizer({**metadata, **bare}, file)
    assert alone is not None and alone.added == (0, 0)


def test_a_piece_twice_is_refused(tmp_path: Path) -> None:
    tokens = ["[UNK]", "##a", "a"]
    metadata = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 1],
    }
    with pytest.raises(TokenizerError, match="a piece of a word twice"):
        gguf_tokenizer(metadata, tmp_path / "a.gguf")


def unigram(folder: Path) -> Path:
    raw = Tokenizer(models.Unigram())
    raw.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")])
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    raw.decoder = decoders.Metaspace(prepend_scheme="always")
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token="<unk>", show_progress=False)
    raw.train_from_iterator(CORPUS * 3, trainer)
    raw.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return save(raw, folder)


def test_pieces_by_their_scores(tmp_path: Path) -> None:
    folder = unigram(tmp_path / "model")
    original = load_tokenizer(folder)
    raw: Any = json.loads((folder / "tokenizer.json").read_text())
    pieces, special = raw["model"]["vocab"], {token["content"] for token in raw["added_tokens"]}
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": [piece for piece, _ in pieces],
        "tokenizer.ggml.scores": [score for _, score in pieces],
        "tokenizer.ggml.token_type": [2 if piece == "<unk>" else 3 if piece in special else 1 for piece, _ in pieces],
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
    }
    found = gguf_tokenizer(metadata, tmp_path / "a.gguf")
    assert found is not None
    for text in TEXTS:
        for added in (False, True):
            assert found.encode(text, added) == original.encode(text, added), text
    with pytest.raises(TokenizerError, match="scores of them"):
        gguf_tokenizer({**metadata, "tokenizer.ggml.scores": [1.0]}, tmp_path / "a.gguf")
