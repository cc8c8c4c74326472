"""Tokens of an identity provider (OpenID Connect Core 1.0; RFC 7519) in the place of keys.

No request waits for the provider. Its keys (RFC 7517) are fetched beside: when a gateway starts, now and then, and when
a token names one that is not known.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import re
import time
import urllib.request
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from penstock.access.errors import InvalidApiKey
from penstock.core.errors import ConfigurationError
from penstock.tenancy.errors import ProviderUnavailable
from penstock.tenancy.oidc_options import IssuerOptions

logger = logging.getLogger("penstock.gateway")

# Signatures by a provider's private key. Never "none", and no shared secrets: a public key could be taken for one.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519")
DISCOVERY = "/.well-known/openid-configuration"
MOST_TOKEN_BYTES = 8192
_MOST_BYTES = 1024 * 1024
_FETCH_SECONDS, _OFTEN_SECONDS, _REFRESH_SECONDS = 5.0, 5.0, 300.0
_MOST_KNOWN = 10_000
_KINDS = ("RSA", "EC", "OKP")
_TOKEN = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")


class Subject(msgspec.Struct, frozen=True):
    """Whom a token is for: its subject, the project that it names, and its roles."""

    name: str
    project: str | None
    roles: frozenset[str]


class _Configuration(msgspec.Struct, frozen=True):
    issuer: str
    jwks_uri: str


class _KeyList(msgspec.Struct, frozen=True):
    keys: list[dict[str, Any]]


class Issuer:
    """One identity provider, as a gateway knows it.

    Attributes:
        away: why its keys could not be fetched last; None where they could.
    """

    def __init__(self, options: IssuerOptions, clock: Callable[[], float] = time.time) -> None:
        self.options = options
        self.away: str | None = None
        self._clock = clock
        self._keys: KeySet | None = None
        self._names: frozenset[str] = frozenset()
        self._known: OrderedDict[bytes, tuple[Subject, float]] = OrderedDict()
        self._wanted = asyncio.Event()
        self._fetched = float("-inf")

    def subject(self, token: bytes) -> Subject:
        """Whom a token is for. Raises InvalidApiKey, and ProviderUnavailable where its key is not known yet."""
        if len(token) > MOST_TOKEN_BYTES:
            raise InvalidApiKey(f"The token has more than {MOST_TOKEN_BYTES} bytes.")
        digest = hashlib.sha256(token).digest()
        known = self._known.get(digest)
        if known is not None:
            _check_end(known[1], self._clock(), self.options.leeway)
            return known[0]
        claims = self._verified(token)
        subject, end = self._subject(claims), float(claims["exp"])
        self._known[digest] = subject, end
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return subject

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """While the block runs, its keys are fetched. One that does not answer may do so later."""
        await self._fetch()
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _verified(self, token: bytes) -> Mapping[str, Any]:
        header = _header(token)
        if header.get("alg") not in ALGORITHMS:
            raise InvalidApiKey(f"The token is signed by {str(header.get('alg'))[:40]!r}, which is not accepted here.")
        if self._keys is None or (header.get("kid") is not None and header["kid"] not in self._names):
            self._wanted.set()
            # A provider may have new keys; a token that names one at random is told to come back once at most.
            if self._keys is None or self.away is not None or self._clock() - self._fetched > _OFTEN_SECONDS:
                why = "" if self.away is None else f" ({self.away})"
                raise ProviderUnavailable(
                    f"The key that signed the token is not known yet, and its issuer is asked for it{why}; try again."
                )
            raise InvalidApiKey("The token is signed by a key that its issuer does not have.")
        try:
            decoded = jwt.decode(token.decode(), self._keys, algorithms=list(ALGORITHMS))
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise InvalidApiKey(f"The token's signature is not its issuer's ({type(error).__name__}).") from None
        self._check(decoded.claims)
        return decoded.claims

    def _check(self, claims: Mapping[str, Any]) -> None:
        """Raise InvalidApiKey where a token is another issuer's, for others, over, or not valid yet (RFC 7519, 4.1)."""
        now, leeway = self._clock(), self.options.leeway
        if claims.get("iss") != self.options.issuer:
            raise InvalidApiKey("The token is of another issuer than the one that is trusted here.")
        audience = claims.get("aud")
        if self.options.audience not in ([audience] if isinstance(audience, str) else audience or ()):
            raise InvalidApiKey(f"The token is for others; its audience must be {self.options.audience!r}.")
        for name in ("exp", "nbf", "iat"):
            value = claims.get(name)
            if value is None and name != "exp":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidApiKey(f"The token has no {name}, or one that is no number.")
        _check_end(claims["exp"], now, leeway)
        begins = max(claims.get("nbf", now), claims.get("iat", now))
        if begins > now + leeway:
            raise InvalidApiKey(
                f"The token is valid in {begins - now:.0f} s only; compare the clocks of its issuer and this machine."
            )

    def _subject(self, claims: Mapping[str, Any]) -> Subject:
        options, name = self.options, claims.get("sub")
        if not isinstance(name, str) or not name:
            raise InvalidApiKey("The token has no subject.")
        project = claims.get(options.project_claim)
        if isinstance(project, str):
            project = options.projects.get(project, None if options.projects else project)
        roles = claims.get(options.roles_claim) or ()
        roles = [roles] if isinstance(roles, str) else roles
        said = frozenset(each for each in roles if isinstance(each, str)) if isinstance(roles, list | tuple) else ()
        return Subject(name[:200], project if isinstance(project, str) else None, frozenset(said))

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REFRESH_SECONDS):
                    await self._wanted.wait()
            self._wanted.clear()
            await self._fetch()
            await asyncio.sleep(_OFTEN_SECONDS)

    async def _fetch(self) -> None:
        try:
            found = await asyncio.to_thread(self._ask)
        except (OSError, ValueError, KeyError, TypeError, JoseError, msgspec.DecodeError, ConfigurationError) as error:
            why = getattr(error, "reason", None) or str(error) or type(error).__name__
            if self.away is None:
                logger.error("The keys of %s cannot be fetched: %s", self.options.issuer, why)
            self.away = str(why)
            return
        if self.away is not None:
            logger.warning("The keys of %s are known again.", self.options.issuer)
        self.away, self._keys, self._fetched = None, found, self._clock()
        self._names = frozenset(key.kid for key in found.keys if key.kid is not None)
        # What was signed by a key that is gone is not taken any more.
        self._known.clear()

    def _ask(self) -> KeySet:
        url = self.options.jwks
        if url is None:
            found = msgspec.json.decode(_fetched(self.options.issuer.rstrip("/") + DISCOVERY), type=_Configuration)
            if found.issuer != self.options.issuer:
                raise ValueError(f"its configuration is that of {found.issuer[:200]!r}")
            url = msgspec.structs.replace(self.options, jwks=found.jwks_uri).check().jwks
        assert url is not None
        listed = msgspec.json.decode(_fetched(url), type=_KeyList).keys
        # Only keys that sign, and that are no shared secrets.
        signing = [key for key in listed if key.get("kty") in _KINDS and key.get("use", "sig") == "sig"]
        return KeySet.import_key_set({"keys": signing})


def is_token(secret: bytes) -> bool:
    """Whether it may be one: three parts with dots between, which no key has."""
    return _TOKEN.fullmatch(secret) is not None


def _check_end(end: float, now: float, leeway: float) -> None:
    if now >= end + leeway:
        raise InvalidApiKey(f"The token expired {now - end:.0f} s ago; get a new one.")


def _header(token: bytes) -> dict[str, Any]:
    part = token.split(b".", 1)[0]
    try:
        found = json.loads(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidApiKey("The token's head cannot be read.")
    return found


def _fetched(url: str) -> bytes:
    """The document at a URL. Raises OSError, ValueError."""
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    with urllib.request.urlopen(request, timeout=_FETCH_SECONDS) as answer:
        content: bytes = answer.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{url} has more than {_MOST_BYTES} bytes")
    return content
