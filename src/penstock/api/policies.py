"""What becomes of unknown fields, and of a max_tokens that the context has no room for, as the operator wants it."""

from dataclasses import dataclass

from penstock.api.fields import UNKNOWN_FIELDS, UnknownFields
from penstock.api.parameters import MAX_TOKENS_POLICIES, MaxTokensPolicy
from penstock.core.config import Reason
from penstock.core.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class FieldPolicies:
    """The same in all dialects.

    Attributes:
        unknown_fields: what becomes of fields of requests that nothing is known of.
        max_tokens_policy: what becomes of a max_tokens that the context has no room for.
    """

    unknown_fields: UnknownFields = "refuse"
    max_tokens_policy: MaxTokensPolicy = "cut"

    def check(self) -> "FieldPolicies":
        """Itself. Raises ConfigurationError where a value cannot be."""
        for option, value, values in (
            ("--unknown-fields", self.unknown_fields, UNKNOWN_FIELDS),
            ("--max-tokens-policy", self.max_tokens_policy, MAX_TOKENS_POLICIES),
        ):
            if value not in values:
                raise ConfigurationError(f"{option} {value} is not one of {', '.join(values)}.")
        return self

    @property
    def reasons(self) -> list[Reason]:
        """The settings, and why they have their values."""
        default = FieldPolicies()

        def reason(name: str, value: str, why: str) -> Reason:
            asked = value != getattr(default, name)
            return Reason(name.replace("_", " "), value, "as asked" if asked else why)

        return [
            reason("unknown_fields", self.unknown_fields, "requests with fields that nothing is known of are refused"),
            reason(
                "max_tokens_policy",
                self.max_tokens_policy,
                "an output that the context has no room for is cut to it, and the answer's header tells",
            ),
        ]
