"""The prompt that a checkpoint has before each text that becomes a vector."""

from typing import NamedTuple

from penstock.core.vectors import VectorModules
from penstock.text.tokenizer import Tokenizer


class VectorPrompt(NamedTuple):
    """What stands before a text.

    Attributes:
        text: the prompt; empty where there is none.
        around: tokens before the text and behind it, which stay where it is cut.
        skipped: how many of the first tokens do not go into the vector.
    """

    text: str
    around: tuple[int, int] = (0, 0)
    skipped: int = 0


def vector_prompt(
    text: str, tokenizer: Tokenizer | None, modules: VectorModules, *, added: bool = True
) -> VectorPrompt:
    """One of a model's prompts as its tokenizer reads it, with the tokens that it adds unless `added` is False.

    Without a tokenizer there are no texts that it could stand before.
    """
    if tokenizer is None:
        return VectorPrompt(text)
    around = tokenizer.around(text, added=added)
    return VectorPrompt(text, around, around[0] if text and not modules.includes_prompt else 0)
