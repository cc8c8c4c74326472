"""What any request may say beside what it asks for: its place in the queue, and whose it is."""

from collections.abc import Mapping

from penstock.api.requests import CommonFields, EmbeddingFields, ScoringFields
from penstock.core.checks import LONGEST_SECONDS, check_characters, check_number
from penstock.core.errors import InvalidParameter
from penstock.core.request import MAX_SALT_LENGTH, Standing

MAX_NAME_LENGTH = 512
MAX_METADATA_KEY, MAX_METADATA_VALUE = 64, 512
# The priorities that stand for the tiers of OpenAI's API; lower ones run first.
TIERS = {"auto": 0, "default": 0, "flex": 1, "priority": -1}
# A body without these words asks for no priority. One that writes them otherwise, as JSON can, is taken for such.
_PRIORITY_WORDS = (b'"priority"', b'"service_tier"')
# What "auto" comes to, and what an answer says in its place.
_AUTOMATIC_TIER = "default"


def check_extras(fields: CommonFields | EmbeddingFields | ScoringFields) -> None:
    """Raise InvalidParameter where one of them cannot be."""
    if fields.priority is not None and not -(2**31) <= fields.priority < 2**31:
        raise InvalidParameter("priority", f"{fields.priority} does not fit into 32 bits.")
    if fields.timeout is not None:
        check_number("timeout", fields.timeout, 0, LONGEST_SECONDS, exclusive_low=True)
    if fields.cache_salt is not None and not 1 <= len(fields.cache_salt) <= MAX_SALT_LENGTH:
        raise InvalidParameter("cache_salt", f"must have 1 to {MAX_SALT_LENGTH} characters.")
    if fields.user is not None and len(fields.user) > MAX_NAME_LENGTH:
        raise InvalidParameter("user", f"must have at most {MAX_NAME_LENGTH} characters.")
    if isinstance(fields, CommonFields):
        check_metadata(fields.metadata or {})
        _check_tier(fields)
        _check_stream_options(fields)


def may_have_priority(body: bytes) -> bool:
    """Whether a body that is not parsed yet may ask for a priority or a tier."""
    return any(word in body for word in _PRIORITY_WORDS)


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raise InvalidParameter where there is more of it than OpenAI's API takes."""
    for key, value in metadata.items():
        check_characters("metadata", key + value)
        if len(key) > MAX_METADATA_KEY:
            raise InvalidParameter("metadata", f"a key must have at most {MAX_METADATA_KEY} characters.")
        if len(value) > MAX_METADATA_VALUE:
            raise InvalidParameter(f"metadata.{key}", f"must have at most {MAX_METADATA_VALUE} characters.")


def _check_tier(fields: CommonFields) -> None:
    tier = fields.service_tier
    if tier is None:
        return
    if tier not in TIERS:
        raise InvalidParameter("service_tier", f"{tier[:40]!r} is not one of {', '.join(TIERS)}.")
    if fields.priority is not None:
        raise InvalidParameter("service_tier", "cannot be combined with priority; send one of them.")


def told_tier(tier: str | None) -> str | None:
    """The tier that a request was served in, as its answer says it; None where it asked for none."""
    return _AUTOMATIC_TIER if tier == "auto" else tier


def _check_stream_options(fields: CommonFields) -> None:
    options = fields.stream_options
    if options is None:
        return
    if not fields.stream:
        raise InvalidParameter("stream_options", "needs stream to be true.")
    if options.continuous_usage_stats and not options.include_usage:
        raise InvalidParameter("stream_options.continuous_usage_stats", "needs include_usage to be true.")


def asked_standing(fields: CommonFields | EmbeddingFields | ScoringFields) -> Standing:
    """How a request stands to others, as far as it says so itself; a priority is a number or a tier."""
    priority = fields.priority or 0
    if isinstance(fields, CommonFields) and fields.service_tier is not None:
        priority = TIERS[fields.service_tier]
    return Standing(priority=priority, cache_salt=fields.cache_salt or "")
