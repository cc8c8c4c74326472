"""Random content of prompts: token ids, or words."""

from collections.abc import Sequence

import msgspec
import numpy as np

from penstock.bench.load.workload import Block

# Short and common, so that most tokenizers have one token for each.
WORDS = tuple(
    """
air animal arm art baby bag ball bank bed bird boat body book box boy bridge brother building bus camp car card cat
chair child church city class coat coffee country cow cup day desk dinner doctor dog door dream dress ear earth egg
end eye face family farm father field fire fish floor flower food foot forest friend game garden girl glass gold
grass green group hair hand hat head heart hill home horse hour house ice island job king kitchen lake land language
law letter light line love machine man map market milk mind money moon morning mother mountain mouth music name neck
night noise north nose ocean office oil paper park party people picture place plane plant plate point power price
question rain road rock room rose salt school sea season shape ship shoe shop side sister sky sleep snow song sound
south spring star station stone story street sugar summer sun table tea teacher test thing time town train tree
voice wall war watch water way week west wheel wind window winter woman wood word work world year
""".split()  # noqa: SIM905 -- a line for each word would hide the rest of the file
)


class TokenIds(msgspec.Struct, frozen=True):
    """Prompts of token ids from `low` to `high` - 1: exactly as long as they should be."""

    low: int
    high: int

    def render(self, blocks: Sequence[Block]) -> list[int]:
        """The ids of all blocks."""
        drawn = [np.random.default_rng(block.key).integers(self.low, self.high, block.tokens) for block in blocks]
        ids: list[int] = np.concatenate(drawn).tolist()
        return ids


class Words(msgspec.Struct, frozen=True):
    """Prompts of common words.

    Attributes:
        tokens_per_word: in the mean, so that prompts are about as long as they should be.
        words: which are drawn. Where each of them is one token, prompts are exactly as long as they should be.
    """

    tokens_per_word: float = 1.0
    words: tuple[str, ...] = WORDS

    def render(self, blocks: Sequence[Block]) -> str:
        """The words of all blocks."""
        chosen: list[str] = []
        for block in blocks:
            count = max(1, round(block.tokens / self.tokens_per_word))
            drawn = np.random.default_rng(block.key).integers(0, len(self.words), count)
            chosen += [self.words[index] for index in drawn]
        return " ".join(chosen)


class FirstWords(msgspec.Struct, frozen=True):
    """Prompts of the first words there are, each once: one word for each token that is asked for."""

    def render(self, blocks: Sequence[Block]) -> str:
        """The words of all blocks."""
        return " ".join(WORDS[: sum(block.tokens for block in blocks)])


Content = TokenIds | Words | FirstWords
