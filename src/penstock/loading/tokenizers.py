"""Finds the tokenizer of a model, wherever it is."""

from pathlib import Path

from penstock.loading.gguf import is_gguf, read_gguf
from penstock.loading.gguf_parts import first_part
from penstock.text.gguf_tokenizer import gguf_tokenizer
from penstock.text.tokenizer import Tokenizer, find_tokenizer
from penstock.text.translators import has_pieces, tokenizer_of_pieces


def has_tokenizer(path: Path) -> bool:
    """Whether there may be one in a directory, or in a GGUF file."""
    return (path / "tokenizer.json").exists() or has_pieces(path) or is_gguf(path)


def tokenizer_in(path: Path, model_vocab_size: int) -> Tokenizer | None:
    """The tokenizer in a model's directory or GGUF file, checked against the model; None where there is none.

    Raises TokenizerError where it cannot be used.
    """
    if not is_gguf(path):
        if not (path / "tokenizer.json").exists() and has_pieces(path):
            made = tokenizer_of_pieces(path)
            made.check_against(model_vocab_size)
            return made
        return find_tokenizer(path, model_vocab_size)
    tokenizer = gguf_tokenizer(read_gguf(first_part(path)).metadata, path)
    if tokenizer is not None:
        tokenizer.check_against(model_vocab_size)
    return tokenizer
