"""The outputs that a grammar accepts."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from penstock.core.grammar import Grammar
from penstock.sampling.grammar import Grammars
from penstock.text.tokenizer import load_tokenizer
from support.tokenizers_made import make_raw, save


class Vocabulary:
    """A small tokenizer, and grammars over it.

    Attributes:
        marks: ids of those texts that are special tokens of it, beside its own.
    """

    def __init__(self, directory: Path, marks: Sequence[str] = ()) -> None:
        raw: Any = make_raw("byte_level")
        raw.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
        self.tokenizer = load_tokenizer(save(raw, directory))
        self.end = self.tokenizer.token_id("</s>") or 0
        self.marks = {mark: self.tokenizer.token_id(mark) or 0 for mark in marks}
        self.grammars = Grammars(self.tokenizer.table, self.tokenizer.vocab_size, (self.end,))


class Language:
    """The outputs that a grammar accepts."""

    def __init__(self, vocabulary: Vocabulary, grammar: Grammar) -> None:
        self._vocabulary = vocabulary
        self._tokenizer = vocabulary.tokenizer
        self._grammar = grammar

    def __contains__(self, text: object) -> bool:
        return self._accepts(self._tokenizer.encode(str(text), False))

    def spelled_out(self, text: str) -> bool:
        """Whether it accepts a text whose marks are no special tokens, even where there are such."""
        marked = self._tokenizer.mark_special(text, "\ufdd0")
        return self._accepts(self._tokenizer.encode_marked(marked, "\ufdd0"))

    def example(self, chance: random.Random, most_tokens: int = 400, begun: str = "") -> str | None:
        """An output drawn at random, whose beginning is `begun`; None where it does not come to an end."""
        matcher, tokens, end = self._matcher(), self._tokenizer.encode(begun, False), self._vocabulary.end
        assert matcher.consume_tokens(tokens)
        for _ in range(most_tokens):
            mask = matcher.compute_bitmask()
            allowed = [index for index in range(self._tokenizer.vocab_size) if mask[index // 8] >> index % 8 & 1]
            token = end if end in allowed and chance.random() < 0.5 else chance.choice(allowed)
            if token == end:
                return self._tokenizer.decode(tokens, skip_special=False)
            tokens.append(token)
            assert matcher.consume_token(token), matcher.get_error()
            if matcher.is_stopped():
                return self._tokenizer.decode(tokens, skip_special=False)
        return None

    def _accepts(self, tokens: list[int]) -> bool:
        tokens = [*tokens, self._vocabulary.end]
        accepted: int = self._matcher().validate_tokens(tokens)
        return accepted == len(tokens)

    def _matcher(self) -> Any:
        return self._vocabulary.grammars.matcher(self._grammar).raw
