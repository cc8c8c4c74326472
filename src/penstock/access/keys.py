"""API keys: how they are made, the file that has their hashes, and which tenant has which. No key itself is kept."""

import hashlib
import hmac
import math
import re
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from penstock.access.errors import InvalidApiKey
from penstock.access.tenants import EVERYBODY, MOST_CACHED_SECONDS, Bounds, Tenant, levels_of
from penstock.core.errors import ConfigurationError
from penstock.core.request import WEIGHTS
from penstock.core.text_files import decoded

# Where one key is given without a file.
ONLY = "default"
MAX_KEYS = 1000
MAX_KEY_LENGTH = 512
# What is shorter can be guessed; a key that `new_key` makes has 256 bits.
SHORTEST_GOOD_KEY = 20
_MOST_FILE_BYTES = 1 << 20
_LEAST_WEIGHT, _MOST_WEIGHT = WEIGHTS
# What a key may use, as its entry and its tenant have it, and the largest of these numbers.
LIMITS = ("max_concurrent_requests", "requests_per_minute", "tokens_per_minute")
_MOST_LIMIT = 10**12
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_SECRET = re.compile(rf"[!-~]{{1,{MAX_KEY_LENGTH}}}")


@dataclass(frozen=True)
class Key:
    """One key: its SHA-256, and the tenant that has it."""

    tenant: Tenant
    digest: bytes = field(repr=False)


class Keys(Protocol):
    """The keys that a server takes, wherever they are kept. Where there are none, every client may ask."""

    def __bool__(self) -> bool:
        """Whether a key is needed."""

    def find(self, secret: bytes) -> Tenant:
        """Whose key this is. Raises InvalidApiKey, which never quotes it."""

    def tenant(self, name: str) -> Tenant | None:
        """The tenant of this name; None where no key has it (any more)."""

    def may_ask(self, name: str) -> bool:
        """Whether a tenant of this name can have asked, as far as is known."""


class Keyring:
    """The keys that a server takes. Without any, every client may ask, as one tenant."""

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        """Raises ConfigurationError where two keys are one, or have one name."""
        self._keys = tuple(keys)
        self._tenants = {key.tenant.name: key.tenant for key in keys} if keys else {"": EVERYBODY}
        if len(self._keys) > MAX_KEYS:
            raise ConfigurationError(f"There are {len(self._keys)} API keys; at most {MAX_KEYS} are accepted.")
        seen: set[str] = set()
        digests: dict[bytes, str] = {}
        for key in self._keys:
            name = key.tenant.name
            if name in seen:
                raise ConfigurationError(f"Two API keys have the name {name!r}; each needs one of its own.")
            seen.add(name)
            other = digests.setdefault(key.digest, name)
            if other != name:
                raise ConfigurationError(f"{other!r} and {name!r} have the same API key; make one for each.")

    def __bool__(self) -> bool:
        return bool(self._keys)

    @property
    def names(self) -> list[str]:
        """Of the keys, in order."""
        return [key.tenant.name for key in self._keys]

    @property
    def tenants(self) -> list[Tenant]:
        """The tenants that have keys, in order."""
        return [key.tenant for key in self._keys]

    def find(self, secret: bytes) -> Tenant:
        """Whose key this is. It takes as long for every key, and for what is none. Raises InvalidApiKey."""
        digest = hashlib.sha256(secret[: MAX_KEY_LENGTH + 1]).digest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key.tenant
        if found is None:
            raise InvalidApiKey("The API key is none of this server's.")
        return found

    def tenant(self, name: str) -> Tenant | None:
        """The tenant of this name; None where no key has it (any more)."""
        return self._tenants.get(name)

    def may_ask(self, name: str) -> bool:
        """Whether a tenant of this name can have asked: with a key of its own, or through one that asks for others.

        Where there is one of these, it is not known here which of the others' tenants are left.
        """
        return name in self._tenants or any(key.tenant.for_others for key in self._keys)


def new_key() -> str:
    """A random key that cannot be guessed."""
    return f"penstock-{secrets.token_urlsafe(32)}"


def entry(
    name: str,
    secret: str,
    weight: float | None = None,
    max_stored_bytes: int | None = None,
    limits: Mapping[str, int | None] | None = None,
    *,
    for_others: bool = False,
) -> str:
    """What the key file says of a key. Raises ConfigurationError where there can be no such entry."""
    check_name(name, "the name")
    check_weight(weight, f"the key {name!r}")
    lines = ["[[key]]", f'name = "{name}"', f'sha256 = "{hashlib.sha256(secret.encode()).hexdigest()}"']
    if weight is not None:
        lines.append(f"weight = {weight!r}")
    lines += [f"{name} = {most}" for name, most in (limits or {}).items() if most is not None]
    if max_stored_bytes is not None:
        _check_stored_bytes(max_stored_bytes, f"the key {name!r}")
        lines.append(f"max_stored_bytes = {max_stored_bytes}")
    if for_others:
        lines.append("for_others = true")
    return "\n".join(lines) + "\n"


def only_key(secret: str) -> Key:
    """The key of a server that has one. Raises ConfigurationError, without it, where this can be none."""
    if not _SECRET.fullmatch(secret):
        raise ConfigurationError(
            f"The API key must have 1 to {MAX_KEY_LENGTH} visible ASCII characters and no spaces; `penstock key NAME` "
            "makes one."
        )
    return Key(Tenant(name=ONLY), hashlib.sha256(secret.encode()).digest())


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    sha256: str
    weight: float = 1.0
    max_concurrent_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_stored_bytes: int | None = None
    answer_cache_seconds: int = 0
    for_others: bool = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: list[_Entry]


def read_keys(path: Path) -> list[Key]:
    """The keys of a file. Raises ConfigurationError with the cause; it never quotes what may be a key."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"The API key file {path} cannot be read ({error.strerror}).") from error
    return parse_keys(content, path)


def parse_keys(content: bytes, path: Path) -> list[Key]:
    """The keys of a file with this content. Raises ConfigurationError."""
    where = f"The API key file {path}"
    if len(content) > _MOST_FILE_BYTES:
        raise ConfigurationError(f"{where} is longer than {_MOST_FILE_BYTES} bytes, which no list of keys needs.")
    try:
        entries = msgspec.convert(tomllib.loads(decoded(content)), _File).key
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{where} is not UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{where} is not valid TOML: {error}.") from error
    except msgspec.ValidationError as error:
        raise ConfigurationError(
            f"{where} has another form than [[key]] tables with name, sha256 and maybe weight, "
            "max_concurrent_requests, requests_per_minute, tokens_per_minute, max_stored_bytes, answer_cache_seconds "
            f"and for_others: {error}."
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"{where} cannot be read: {error}.") from error
    if not entries:
        raise ConfigurationError(f"{where} has no keys; `penstock key NAME --add {path}` adds one.")
    return [_key(each, f"{where}, key {number}") for number, each in enumerate(entries, 1)]


def _key(fields: _Entry, where: str) -> Key:
    check_name(fields.name, f"{where}: name")
    if not _SHA256.fullmatch(fields.sha256):
        raise ConfigurationError(
            f"{where}: sha256 is not the 64 hexadecimal digits of a hash (`penstock key NAME` prints an entry)."
        )
    check_weight(fields.weight, where)
    limits = {name: getattr(fields, name) for name in LIMITS}
    for name, most in limits.items():
        if most is not None and not 1 <= most <= _MOST_LIMIT:
            raise ConfigurationError(f"{where}: {name} is {most}; leave it out, or give 1 to {_MOST_LIMIT}.")
    _check_stored_bytes(fields.max_stored_bytes, where)
    if not 0 <= fields.answer_cache_seconds <= MOST_CACHED_SECONDS:
        raise ConfigurationError(
            f"{where}: answer_cache_seconds is {fields.answer_cache_seconds}; give 0 to {MOST_CACHED_SECONDS}."
        )
    given = (*limits.values(), fields.max_stored_bytes, fields.answer_cache_seconds or None)
    if fields.for_others and any(most is not None for most in given):
        raise ConfigurationError(
            f"{where}: with for_others, limits are those of the tenants that requests are for; leave them out here."
        )
    tenant = Tenant(
        name=fields.name,
        weight=fields.weight,
        levels=levels_of([(f"key/{fields.name}", Bounds(**limits))]),
        max_stored_bytes=fields.max_stored_bytes,
        answer_cache_seconds=fields.answer_cache_seconds,
        for_others=fields.for_others,
    )
    return Key(tenant, bytes.fromhex(fields.sha256))


def check_name(name: str, where: str) -> None:
    """Raise ConfigurationError for what cannot be a tenant's name."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{where} must have 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', the first a letter or a digit."
        )


def _check_stored_bytes(most: int | None, where: str) -> None:
    if most is not None and not 1 <= most < 2**63:
        raise ConfigurationError(f"{where}: max_stored_bytes is {most}; leave it out, or give 1 to {2**63 - 1}.")


def check_weight(weight: float | None, where: str) -> None:
    """Raise ConfigurationError for what cannot be a tenant's weight."""
    if weight is not None and not (math.isfinite(weight) and _LEAST_WEIGHT <= weight <= _MOST_WEIGHT):
        raise ConfigurationError(f"{where}: weight is {weight}, outside {_LEAST_WEIGHT}..{_MOST_WEIGHT:g}.")
