"""What a gateway is asked for of guardrails: servers that look at requests before replicas do, and at answers."""

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from penstock.access.tenants import Tenant
from penstock.core.checks import LONGEST_SECONDS
from penstock.core.errors import ConfigurationError
from penstock.gateway.pool import address_of

_LONGEST_NAME = 64


class Guardrail(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server that says whether requests, and answers, may pass.

    Attributes:
        name: by which clients are told who refuses something.
        url: where it is asked.
        when: whether it looks at requests, at answers or at both.
        seconds: that it has for an answer.
        on_failure: whether what it does not look at in time passes ("open"), or is refused ("closed").
        models: whose requests it looks at; none: those of all.
        tenants: organisations, projects or keys of a file whose requests it looks at; none: those of all.
        window: characters of a stream that are held until it has looked at them; None: a stream is held to its end.
        key_variable: of the environment, with the API key that it wants.
    """

    name: str
    url: str
    when: Literal["before", "after", "both"] = "before"
    seconds: float = 2.0
    on_failure: Literal["open", "closed"] = "closed"
    models: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    window: int | None = None
    key_variable: str | None = None

    def check(self) -> None:
        """Raise ConfigurationError for what cannot be."""
        of = f"The guardrail {self.name!r}"
        if not 1 <= len(self.name) <= _LONGEST_NAME or not self.name.isprintable():
            raise ConfigurationError(f"{of} must have a name of 1 to {_LONGEST_NAME} printable characters.")
        try:
            address_of(self.url)
        except ConfigurationError:
            raise ConfigurationError(
                f"{of} has the URL {self.url!r}; write one like http://127.0.0.1:9000/check, without a query."
            ) from None
        if not 0.001 <= self.seconds <= LONGEST_SECONDS:
            raise ConfigurationError(
                f"{of} has {self.seconds:g} seconds; it must be from 0.001 to {LONGEST_SECONDS:.0f}."
            )
        if self.window is not None and (self.window < 1 or self.when == "before"):
            raise ConfigurationError(
                f"{of} has the window {self.window}; it must be 1 character or more, of one that looks at answers."
            )

    def is_for(self, tenant: Tenant) -> bool:
        """Whether it looks at what a tenant asks."""
        return not self.tenants or bool({tenant.name, tenant.organisation} & {*self.tenants} - {""})

    def is_for_one_of(self, models: Collection[str]) -> bool:
        """Whether it looks at a request that may get one of these models; none: it may get any."""
        return not self.models or not models or bool({*models} & {*self.models})

    def looks(self, when: str) -> bool:
        """Whether it is asked "before" a request is sent, or "after" it is answered."""
        return self.when in (when, "both")


def check_guardrails(guardrails: Sequence[Guardrail]) -> None:
    """Raise ConfigurationError for what cannot be."""
    names = [each.name for each in guardrails]
    for each in guardrails:
        each.check()
        if names.count(each.name) > 1:
            raise ConfigurationError(f"Two guardrails have the name {each.name!r}; each needs one of its own.")
