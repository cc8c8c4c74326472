"""What an encoder–decoder makes of a source, and how: its requests' prompts are what its encoder reads."""

from collections.abc import Mapping

import msgspec

from penstock.core.errors import InvalidParameter


class Sourced(msgspec.Struct, frozen=True):
    """How the outputs of an encoder–decoder begin.

    Attributes:
        longest: tokens of a source, at most.
        start: the id that its decoder begins with.
        forced: the id that comes next unless a request says another; None: none does.
        languages: ids of tokens that stand for languages, by the codes that the model's files have for these.
        pairs: where there are no such tokens, the languages from and into which it translates, by two letters each,
            with the text that comes before a text to be translated.
        never: sequences of ids that no output has, such as that of padding alone.
    """

    longest: int
    start: int
    forced: int | None = None
    languages: Mapping[str, int] = {}
    pairs: Mapping[tuple[str, str], str] = {}
    never: tuple[tuple[int, ...], ...] = ()

    def beginning(self, forced: int | None) -> list[int]:
        """What the decoder sees before the output that is generated; `forced` as a request asks for it."""
        first = self.forced if forced is None else forced
        return [self.start] if first is None else [self.start, first]


def no_source(param: str) -> InvalidParameter:
    """The error for what only encoder–decoders can do."""
    return InvalidParameter(param, "is for models with an encoder and a decoder, and this model has no encoder.")


NO_CONVERSATIONS = (
    "an encoder–decoder makes a text of a text and takes no conversation; send the text to /v1/completions, or to "
    "/translate."
)
NO_VECTORS = "an encoder–decoder makes no vectors; send the text to /v1/completions, or to /translate."
