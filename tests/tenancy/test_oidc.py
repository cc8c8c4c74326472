"""Tokens of identity providers: whose they are, which are refused and why, and providers that do not answer."""

import asyncio
import base64
import hashlib
import hmac
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc.jwk import OctKey, RSAKey

from penstock.access.errors import InvalidApiKey
from penstock.core.errors import ConfigurationError
from penstock.tenancy.errors import ProviderUnavailable
from penstock.tenancy.oidc import DISCOVERY, Issuer, Subject, is_token
from penstock.tenancy.oidc_options import IssuerOptions
from support.http_server import free_port
from support.identity_provider import EC, ED, NOW, RSA, STRANGER, Clock, Provider
from support.waiting import PATIENCE, until


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.close()


def fetched(issuer: Issuer) -> Issuer:
    """One that has asked for keys once."""
    asyncio.run(issuer._fetch())
    return issuer


def test_whose_a_token_is(provider: Provider) -> None:
    issuer = fetched(Issuer(provider.options(), Clock()))
    for key, alg in ((RSA, "RS256"), (RSA, "PS512"), (EC, "ES256"), (ED, "Ed25519")):
        token = provider.token(key, alg, roles=["a", "b"], aud=["others", "penstock"])
        assert is_token(token)
        assert issuer.subject(token) == Subject("alice", "acme.web", frozenset("ab"))
        # The second time, it is remembered.
        assert issuer.subject(token) == Subject("alice", "acme.web", frozenset("ab"))
    assert provider.asked == 2
    assert issuer.subject(provider.token(penstock_project=None, roles="one")) == Subject(
        "alice", None, frozenset(["one"])
    )
    mapped = fetched(Issuer(provider.options(project_claim="team", projects={"7": "acme.web"}), Clock()))
    assert mapped.subject(provider.token(team="7")).project == "acme.web"
    assert mapped.subject(provider.token(team="8")).project is None


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"iss": "https://else.example"}, "of another issuer"),
        ({"iss": None}, "of another issuer"),
        ({"aud": "else"}, "is for others; its audience must be 'penstock'"),
        ({"aud": None}, "is for others"),
        ({"aud": ["a", "b"]}, "is for others"),
        ({"exp": NOW - 31}, "expired 31 s ago"),
        ({"exp": None}, "has no exp"),
        ({"exp": "soon"}, "has no exp, or one that is no number"),
        ({"exp": True}, "no number"),
        ({"nbf": NOW + 40}, "valid in 40 s only; compare the clocks"),
        ({"iat": NOW + 40}, "valid in 40 s only; compare the clocks"),
        ({"sub": None}, "has no subject"),
        ({"sub": 7}, "has no subject"),
    ],
)
def test_tokens_that_are_refused(provider: Provider, claims: dict[str, Any], says: str) -> None:
    issuer = fetched(Issuer(provider.options(), Clock()))
    with pytest.raises(InvalidApiKey) as caught:
        issuer.subject(provider.token(**claims))
    assert says in caught.value.message


def test_clocks_may_differ_a_little(provider: Provider) -> None:
    clock = Clock()
    issuer = fetched(Issuer(provider.options(), clock))
    token = provider.token(exp=NOW - 20, nbf=NOW + 20, iat=NOW + 20)
    issuer.subject(token)
    # One that is remembered expires, too.
    clock.now += 10
    with pytest.raises(InvalidApiKey, match="expired 30 s ago"):
        issuer.subject(token)


def raw(head: object, claims: object, signature: bytes = b"") -> bytes:
    parts = [json.dumps(head).encode(), json.dumps(claims).encode(), signature]
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)


def test_no_signature_is_none(provider: Provider) -> None:
    issuer = fetched(Issuer(provider.options(), Clock()))
    claims = {"iss": provider.url, "aud": "penstock", "sub": "alice", "exp": NOW + 60}
    for alg in ("none", "None", "NONE", "", None, 7, ["RS256"]):
        with pytest.raises(InvalidApiKey, match="which is not accepted here"):
            issuer.subject(raw({"alg": alg, "kid": "rsa"}, claims))
    for alg in ("RS256", "ES256", "Ed25519"):
        with pytest.raises(InvalidApiKey, match="signature is not its issuer's"):
            issuer.subject(raw({"alg": alg, "kid": "rsa"}, claims))


def test_a_public_key_is_no_shared_secret(provider: Provider) -> None:
    """A token signed by HMAC with the provider's public key as the secret (RFC 8725, 2.1)."""
    issuer = fetched(Issuer(provider.options(), Clock()))
    claims = {"iss": provider.url, "aud": "penstock", "sub": "alice", "exp": NOW + 60}
    for secret in (
        RSA.as_pem(private=False),
        RSA.as_der(private=False),
        json.dumps(RSA.as_dict(private=False)).encode(),
    ):
        unsigned = raw({"alg": "HS256", "kid": "rsa"}, claims).rsplit(b".", 1)[0]
        mac = base64.urlsafe_b64encode(hmac.digest(secret, unsigned, hashlib.sha256)).rstrip(b"=")
        with pytest.raises(InvalidApiKey, match="signed by 'HS256', which is not accepted"):
            issuer.subject(unsigned + b"." + mac)
    # Nor does one count that the provider's list has.
    shared = OctKey.import_key("a secret of both that is long enough", {"kid": "oct"})
    provider.keys.append(shared)
    asyncio.run(issuer._fetch())
    with pytest.raises(InvalidApiKey, match="not accepted"):
        issuer.subject(provider.token(shared, "HS256"))


def test_signatures_of_others(provider: Provider) -> None:
    issuer = fetched(Issuer(provider.options(), Clock()))
    good = provider.token()
    head, claims, signature = good.split(b".")
    changed = provider.token(sub="mallory").split(b".")[1]
    embedded = provider.token(STRANGER, head={"jwk": STRANGER.as_dict(private=False)})
    for token in (
        provider.token(STRANGER),
        b".".join((head, changed, signature)),
        b".".join((head, claims, signature[:-8] + b"AAAAAAAA")),
        b".".join((head, claims, b"")),
        provider.token(RSA, head={"kid": "ec"}),
        embedded,
        raw({"alg": "RS256", "kid": "rsa", "crit": ["b64"], "b64": False}, {}, b"x"),
    ):
        with pytest.raises(InvalidApiKey):
            issuer.subject(token)
    for nonsense in (
        b"a.b.c",
        b"....",
        b"e30.e30.",
        b"bnVsbA.e30.x",
        b"W10.e30.x",
        raw("[" * 100_000, {})[:9000] + b".a.b",
    ):
        with pytest.raises(InvalidApiKey):
            issuer.subject(nonsense)


def test_new_keys_of_a_provider_are_fetched_and_old_ones_forgotten(provider: Provider) -> None:
    clock = Clock()
    issuer = fetched(Issuer(provider.options(), clock))
    old = provider.token(EC, "ES256")
    issuer.subject(old)
    new = RSAKey.generate_key(2048, {"kid": "new"}, auto_kid=False)
    provider.keys = [new]

    async def play() -> None:
        async with issuer.watched():
            token = provider.token(new)
            assert issuer.subject(token).name == "alice"
            with pytest.raises(InvalidApiKey, match="a key that its issuer does not have"):
                issuer.subject(old)

    asyncio.run(play())
    # Long after its keys were fetched, it is asked again before a token is refused.
    clock.now += 3600
    late = provider.token(RSA, exp=NOW + 7200)
    with pytest.raises(ProviderUnavailable, match="not known yet, and its issuer is asked for it; try again"):
        issuer.subject(late)
    assert issuer._wanted.is_set()
    asyncio.run(issuer._fetch())
    with pytest.raises(InvalidApiKey, match="does not have"):
        issuer.subject(late)


def test_a_provider_that_never_answers(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.tenancy.oidc._FETCH_SECONDS", 0.05)
    issuer = Issuer(provider.options(), Clock())
    token = provider.token()
    provider.silent.clear()
    fetched(issuer)
    with pytest.raises(ProviderUnavailable, match="timed out"):
        issuer.subject(token)
    provider.silent.set()
    monkeypatch.setattr("penstock.tenancy.oidc._FETCH_SECONDS", PATIENCE)
    fetched(issuer)
    assert issuer.subject(token).name == "alice"
    # Once they are known, they stay so while it is away.
    provider.broken = "<html>"
    fetched(issuer)
    assert issuer.away is not None and issuer.subject(provider.token(sub="bob")).name == "bob"


@pytest.mark.parametrize("broken", ["<html>", "[]", "7", '{"keys": 7}', '{"issuer": "https://else"}', " " * (1 << 21)])
def test_a_provider_that_answers_nonsense(provider: Provider, broken: str) -> None:
    provider.broken = broken
    issuer = fetched(Issuer(provider.options(), Clock()))
    with pytest.raises(ProviderUnavailable):
        issuer.subject(provider.token())
    assert issuer.away


def test_a_configuration_that_is_another_issuers(provider: Provider) -> None:
    provider.issuer = "https://else.example"
    issuer = fetched(Issuer(provider.options(), Clock()))
    assert issuer.away is not None and "https://else.example" in issuer.away


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"issuer": "http://id.example"}, "oidc.issuer is 'http://id.example'; it must be an https:// URL"),
        ({"jwks": "file:///etc/passwd"}, "oidc.jwks is 'file:///etc/passwd'"),
        ({"audience": ""}, "oidc.audience is empty"),
        ({"leeway": -1.0}, "oidc.leeway is -1"),
    ],
)
def test_options_that_cannot_be(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        IssuerOptions(**{"issuer": "https://id.example", "audience": "penstock", **fields}).check()
    assert says in caught.value.message


def test_a_token_of_a_real_provider() -> None:
    """By the authorization code flow of OpenID Connect, from a server of its own."""
    port = free_port()
    user = json.dumps({"sub": "alice", "penstock_project": "acme.web", "roles": ["operator"]})
    command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "-p", str(port), "--user-claims", user]
    url, back = f"http://127.0.0.1:{port}", "http://127.0.0.1:1/back"
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=url, timeout=PATIENCE) as http:

            def answers() -> bool:
                assert server.poll() is None
                try:
                    return http.get(DISCOVERY).status_code == 200
                except httpx.TransportError:
                    return False

            until(answers)
            asked = {"client_id": "penstock", "redirect_uri": back, "response_type": "code", "scope": "openid"}
            sent = http.post("/oauth2/authorize", params=asked, data={"sub": "alice"})
            code = parse_qs(urlsplit(sent.headers["location"]).query)["code"][0]
            form = {"grant_type": "authorization_code", "code": code, "redirect_uri": back}
            token = http.post("/oauth2/token", data=form, auth=("penstock", "any")).json()["id_token"].encode()
        issuer = fetched(Issuer(IssuerOptions(issuer=url, audience="penstock").check()))
        assert issuer.subject(token) == Subject("alice", "acme.web", frozenset(["operator"]))
        with pytest.raises(InvalidApiKey, match="is for others"):
            fetched(Issuer(IssuerOptions(issuer=url, audience="else").check())).subject(token)
    finally:
        server.kill()
        server.wait()
