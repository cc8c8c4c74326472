"""Rules that give a request another model than the one it names: an easy one a cheap model, or a name that stays."""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.gateway.asked import Asked

_MOST_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes of requests for a model.

    Attributes:
        model: that they name.
        to: that they get.
        most_prompt: tokens of the prompt, about, above which it does not apply.
        most_output: tokens of the answer above which, or without whose bound, it does not apply.
        without: fields that a request must not have for it to apply, such as tools.
    """

    model: str
    to: str
    most_prompt: int | None = None
    most_output: int | None = None
    without: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise ConfigurationError for what cannot be."""
        if not self.model or not self.to or self.model == self.to:
            raise ConfigurationError(
                f"A rule leads from {self.model!r} to {self.to!r}; they must be two models' names."
            )
        for name, most in (("most_prompt", self.most_prompt), ("most_output", self.most_output)):
            if most is not None and most < 1:
                raise ConfigurationError(f"{name} of the rule for {self.model} is {most}; it must be 1 or more.")

    def applies(self, asked: Asked, fields: dict[str, msgspec.Raw]) -> bool:
        """Whether a request is such a one."""
        if self.most_prompt is not None and asked.tokens > self.most_prompt:
            return False
        if any(bytes(fields.get(name, b"null")) not in (b"null", b"[]") for name in self.without):
            return False
        return self.most_output is None or (0 < _most_tokens(fields) <= self.most_output)


def with_model(rules: Sequence[Rule], there: Collection[str], asked: Asked, body: bytes) -> tuple[Asked, bytes]:
    """A request as the first rule has it that applies, and whose model is there; else as the first that applies.

    `there` are the models that can be asked now.
    """
    mine = [rule for rule in rules if rule.model == asked.model]
    if not mine:
        return asked, body
    fields = _decode(body)
    applying = [rule for rule in mine if rule.applies(asked, fields)]
    if not applying:
        return asked, body
    chosen = next((rule for rule in applying if rule.to in there), applying[0])
    fields["model"] = msgspec.Raw(msgspec.json.encode(chosen.to))
    return msgspec.structs.replace(asked, model=chosen.to), msgspec.json.encode(fields)


def _most_tokens(fields: dict[str, msgspec.Raw]) -> int:
    """Tokens that a request bounds its answer to; 0 where it does not."""
    for name in _MOST_TOKENS:
        value: Any = msgspec.json.decode(fields[name]) if name in fields else None
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return 0
