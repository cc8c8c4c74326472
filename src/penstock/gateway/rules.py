"""Rules that give a request another model than the one it names: an easy one a cheap model, or a name that stays."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import msgspec

from penstock.core.checks import LONGEST_SECONDS
from penstock.core.errors import ConfigurationError
from penstock.gateway.asked import Asked

_MOST_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Judge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that is asked whether a rule applies to a request.

    Attributes:
        model: one of the replicas', with chats.
        question: what it is told to say of what the user has said last.
        answers: those with which its answer begins where the rule applies.
        seconds: that it has; where it takes longer, the rule does not apply.
        most_characters: of the user's text that it gets.
        fields: further ones of the request for it, such as a choice that its answer is bound to.
    """

    model: str
    question: str
    answers: tuple[str, ...] = ("yes",)
    seconds: float = 1.0
    most_characters: int = 4000
    fields: dict[str, Any] = {}

    def check(self, model: str) -> None:
        """Raise ConfigurationError for what cannot be; `model` is the one that the rule is for."""
        of = f"The judge of the rule for {model}"
        if not self.model or self.model == model:
            raise ConfigurationError(f"{of} is {self.model!r}; name another model.")
        if not all(self.answers) or not self.answers:
            raise ConfigurationError(f"{of} has no answers with which it applies; name one, such as yes.")
        if not 0 < self.seconds <= LONGEST_SECONDS or self.most_characters < 1:
            raise ConfigurationError(
                f"{of} has {self.seconds:g} s for {self.most_characters} characters; give it some."
            )


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes of requests for a model.

    Attributes:
        model: that they name.
        to: that they get.
        most_prompt: tokens of the prompt, about, above which it does not apply.
        most_output: tokens of the answer above which, or without whose bound, it does not apply.
        without: fields that a request must not have for it to apply, such as tools.
        judge: a model that has to say so for it to apply.
    """

    model: str
    to: str
    most_prompt: int | None = None
    most_output: int | None = None
    without: tuple[str, ...] = ()
    judge: Judge | None = None

    def check(self) -> None:
        """Raise ConfigurationError for what cannot be."""
        if not self.model or not self.to or self.model == self.to:
            raise ConfigurationError(
                f"A rule leads from {self.model!r} to {self.to!r}; they must be two models' names."
            )
        for name, most in (("most_prompt", self.most_prompt), ("most_output", self.most_output)):
            if most is not None and most < 1:
                raise ConfigurationError(f"{name} of the rule for {self.model} is {most}; it must be 1 or more.")

        if self.judge is not None:
            self.judge.check(self.model)

    def applies(self, asked: Asked, fields: dict[str, msgspec.Raw]) -> bool:
        """Whether a request is such a one."""
        if self.most_prompt is not None and asked.tokens > self.most_prompt:
            return False
        if any(bytes(fields.get(name, b"null")) not in (b"null", b"[]") for name in self.without):
            return False
        return self.most_output is None or (0 < _most_tokens(fields) <= self.most_output)


def may_get(rules: Sequence[Rule], model: str) -> set[str]:
    """Which models a request that names one may get, by rules; nothing where it names none, and may get any."""
    return {model, *(rule.to for rule in rules if rule.model == model)} if model else set()


async def with_model(
    rules: Sequence[Rule],
    there: Collection[str],
    asked: Asked,
    body: bytes,
    judged: Callable[[Judge], Awaitable[bool]],
) -> tuple[Asked, bytes]:
    """A request as the first rule has it that applies, and whose model is there; else as the first that applies.

    Args:
        there: models that can be asked now. Where a rule's is not, its judge is not asked, and it does not apply.
        judged: asks a judge of this request.
    """
    mine = [rule for rule in rules if rule.model == asked.model]
    if not mine:
        return asked, body
    fields = _decode(body)
    chosen: Rule | None = None
    for rule in mine:
        if not rule.applies(asked, fields):
            continue
        if rule.judge is not None and not (rule.to in there and await judged(rule.judge)):
            continue
        chosen = chosen or rule
        if rule.to in there:
            chosen = rule
            break
    return (asked, body) if chosen is None else renamed(asked, body, chosen.to)


def renamed(asked: Asked, body: bytes, model: str) -> tuple[Asked, bytes]:
    """The same request for another model."""
    fields = _decode(body)
    fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.structs.replace(asked, model=model), msgspec.json.encode(fields)


def _most_tokens(fields: dict[str, msgspec.Raw]) -> int:
    """Tokens that a request bounds its answer to; 0 where it does not."""
    for name in _MOST_TOKENS:
        value: Any = msgspec.json.decode(fields[name]) if name in fields else None
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return 0
