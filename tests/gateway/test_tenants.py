"""A gateway with a database of tenants: keys that come and go, what they may ask for, and who answers."""

import contextlib
import itertools
import json
from decimal import Decimal
from pathlib import Path

import pytest

from gateway.conftest import COST, Start, World, ask, bearer, chat, knows, month
from penstock.tenancy.oidc import Issuer
from penstock.tenancy.settings import Settings, changed
from penstock.tenancy.statement import statement
from support.identity_provider import Clock, Provider
from support.postgres import PostgresServer
from support.providers import chunk, provider, says
from support.scripted_http import answer, stream, text_chunk, usage_chunk
from support.waiting import until


def test_a_key_works_and_what_it_uses_is_in_the_ledger(world: World) -> None:
    _, early = world.key()
    gateway = world.gateway()
    identifier, late = world.key("acme.web")
    assert ask(gateway, early).status_code == 200
    knows(gateway, late)
    assert [ask(gateway, late).status_code for _ in range(3)] == [200] * 3
    until(lambda: statement(world.database, month()).requests == 4)
    told = statement(world.database, month())
    assert told.cost == 4 * COST
    line = next(line for line in told.lines if line.key == identifier)
    assert (line.requests, line.prompt_tokens, line.output_tokens, line.cost) == (3, 21, 15, 3 * COST)
    assert (line.project, line.model, line.estimated_requests, line.unpriced_requests) == ("acme.web", "scripted", 0, 0)


def test_a_revoked_key_is_refused_by_all_gateways_and_its_streams_end(world: World) -> None:
    quiet, quiet_secret = world.key()
    loud, loud_secret = world.key()
    going = list[bool]()
    script = lambda _request: stream(text_chunk("a"), lambda: bool(going), text_chunk("b"), usage_chunk(7, 2))  # noqa: E731
    gateways = [world.gateway(script), world.gateway(script)]
    with contextlib.ExitStack() as stack:
        streams = {
            secret: [
                stack.enter_context(
                    each.http.stream(
                        "POST",
                        "/v1/completions",
                        json={"model": "scripted", "prompt": "a", "stream": True},
                        headers=bearer(secret),
                    )
                )
                for each in gateways
            ]
            for secret in (quiet_secret, loud_secret)
        }
        lines = {secret: [each.iter_lines() for each in some] for secret, some in streams.items()}
        for some in lines.values():
            for each in some:
                assert '"a"' in next(each)
        world.registry.revoke_key("test", quiet)
        world.registry.revoke_key("test", loud, ends_streams=True)
        for each in lines[loud_secret]:
            rest = "\n".join(each)
            assert "key_revoked" in rest and '"b"' not in rest
        for gateway, secret in itertools.product(gateways, (quiet_secret, loud_secret)):
            until(lambda gateway=gateway, secret=secret: ask(gateway, secret).status_code == 401)
            assert "was revoked at" in ask(gateway, secret).json()["error"]["message"]
        # What was under way with the other one goes on.
        going.append(True)
        for each in lines[quiet_secret]:
            rest = "\n".join(each)
            assert '"b"' in rest and "key_revoked" not in rest
    until(lambda: statement(world.database, month()).requests == 4)


def test_what_a_key_may_ask_for(world: World) -> None:
    _, secret = world.key(models=["scripted"], endpoints=["/v1/completions"], max_output_tokens=50)
    gateway = world.gateway()
    assert ask(gateway, secret).status_code == 200
    assert gateway.servers[0].asked[-1].body["max_tokens"] == 50
    assert ask(gateway, secret, max_tokens=20).status_code == 200
    assert gateway.servers[0].asked[-1].body["max_tokens"] == 20
    refusals = [
        (ask(gateway, secret, max_tokens=51), 400, "more than the 50 tokens of an answer"),
        (ask(gateway, secret, model="other"), 403, "may not ask for the model 'other'; it may ask for scripted"),
        (ask(gateway, secret, path="/v1/embeddings"), 403, "may not ask /v1/embeddings; it may ask /v1/completions"),
        (gateway.http.post("/v1/completions", json={"prompt": "a"}, headers=bearer(secret)), 403, "names no model"),
    ]
    for refused, status, said in refusals:
        assert refused.status_code == status and said in refused.json()["error"]["message"]
    assert gateway.asked == [2]


def test_a_bound_is_one_that_counts_at_the_path(world: World) -> None:
    """Other servers than Penstock's let fields pass that they do not know, and of two take the one that they like."""
    _, secret = world.key(max_output_tokens=50)
    _, poor = world.key(budget_per_day="0.001")
    gateway = world.gateway()
    for fields, named in (
        ({"max_tokens": 51}, "max_tokens"),
        ({"max_completion_tokens": 51, "max_tokens": 5}, "max_completion_tokens"),
        ({"max_completion_tokens": 5, "max_tokens": 51, "max_output_tokens": 1}, "max_tokens"),
    ):
        refused = chat(gateway, secret, **fields)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == named
    assert chat(gateway, secret, max_output_tokens=5).status_code == 200
    assert gateway.servers[0].asked[-1].body["max_completion_tokens"] == 50
    assert chat(gateway, poor, max_tokens=1000, max_output_tokens=1).status_code == 402
    assert chat(gateway, poor, max_tokens=1000, max_completion_tokens=1).status_code == 402


def test_a_context_is_capped(world: World) -> None:
    _, secret = world.key(max_context_tokens=100)
    gateway = world.gateway()
    assert ask(gateway, secret, prompt="x" * 238).status_code == 200
    # A token is taken to have four bytes: 238 and two quotes.
    assert gateway.servers[0].asked[-1].body["max_tokens"] == 40
    refused = ask(gateway, secret, prompt="x" * 238, max_tokens=41)
    assert refused.status_code == 400 and "ask for at most 40" in refused.json()["error"]["message"]
    refused = ask(gateway, secret, prompt="x" * 500)
    assert refused.status_code == 400 and "may use 100 for prompt and answer" in refused.json()["error"]["message"]
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert gateway.asked == [1]


def test_providers_see_only_what_tenants_let_them(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine cannot answer; one provider is of each class."""
    world.registry.create_project("test", "acme.secret", changed(Settings(), {"privacy_classes": ["own"]}))
    world.registry.create_project("test", "acme.eu", changed(Settings(), {"privacy_classes": ["own", "eu"]}))
    secrets = {name: world.key(f"acme.{name}")[1] for name in ("web", "secret", "eu")}
    with contextlib.ExitStack() as stack:
        made = [
            stack.enter_context(provider(monkeypatch, says("a", "b", prompt=8, cached=3), name=name, privacy=privacy))
            for name, privacy in (("first", "us"), ("second", "eu"))
        ]
        offered, (us, eu) = tuple(options for options, _ in made), (server for _, server in made)
        gateway = world.gateway(lambda _request: answer(b"{}", 500), provider=offered)
        told = {name: chat(gateway, secret, timeout=0.05) for name, secret in secrets.items()}
        assert [each.status_code for each in told.values()] == [200, 500, 200]
        assert told["web"].headers["x-penstock-replica"] == "provider/first"
        assert told["eu"].headers["x-penstock-replica"] == "provider/second"
        assert [len(us.asked), len(eu.asked)] == [1, 1]
        until(lambda: statement(world.database, month()).requests == 3)
    # 5 at 2, 3 at 1 and 2 at 10 for a million; what was not answered costs nothing.
    costs = {line.project: line.cost for line in statement(world.database, month()).lines}
    expected = Decimal("0.000033")
    assert costs == {"acme.web": expected, "acme.eu": expected, "acme.secret": Decimal(0)}


def test_a_model_of_a_provider_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer without usage is counted here, and told to be estimated."""
    world.registry.create_project("test", "acme.secret", changed(Settings(), {"privacy_classes": ["own"]}))
    secret, web = world.key("acme.secret")[1], world.key()[1]
    script = stream(chunk({"content": "eight letters"}), chunk({}, "stop"), "[DONE]")
    with provider(monkeypatch, lambda _request: script, model="large") as (offered, server):
        gateway = world.gateway(provider=(offered,))
        refused = chat(gateway, secret, model="large")
        assert refused.status_code == 403 and "own machines" in refused.json()["error"]["message"]
        assert not server.asked
        answered = chat(gateway, web, model="large").json()
        assert answered["usage"]["completion_tokens"] == 4
        until(lambda: statement(world.database, month()).requests == 1)
    [line] = statement(world.database, month()).lines
    assert (line.model, line.output_tokens, line.estimated_requests) == ("large", 4, 1)
    assert line.cost == Decimal(line.prompt_tokens * 2 + 40) / 10**6


def test_requests_go_on_while_the_database_is_away(gateway: Start, postgres: PostgresServer, tmp_path: Path) -> None:
    postgres.execute("CREATE DATABASE tenants_away")
    world = World(gateway, postgres.url.replace("/postgres?", "/tenants_away?"), tmp_path)
    _, secret = world.key()
    _, admin = world.key(None, "admin")
    running = world.gateway()
    assert ask(running, secret).status_code == 200
    postgres.kill()
    try:
        assert [ask(running, secret).status_code for _ in range(20)] == [200] * 20
        refused = running.http.get("/admin/v1/audit", headers=bearer(admin))
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "database_unavailable"
        assert refused.headers["retry-after"] == "1"
    finally:
        postgres.start()
    until(lambda: statement(world.database, month()).requests == 21)
    assert statement(world.database, month()).cost == 21 * COST
    # Keys that come afterwards are learned, too.
    _, late = world.key()
    knows(running, late)
    world.database.close()


def test_tokens_of_an_identity_provider(gateway: Start, tmp_path: Path) -> None:
    world = World(gateway, str(tmp_path / "tenants.sqlite"), tmp_path)
    _, secret = world.key()
    with contextlib.closing(Provider()) as provider:
        issuer = Issuer(provider.options(admins=("operator",), auditors=("clerk",)), Clock())
        running = world.gateway(issuer=issuer)
        good = provider.token().decode()
        assert ask(running, good).status_code == 200
        for token, says in (
            (provider.token(penstock_project=None), "names no project"),
            (provider.token(penstock_project="acme.none"), "'acme.none', which is closed or not there"),
            (provider.token(aud="else"), "is for others"),
        ):
            refused = ask(running, token.decode())
            assert refused.status_code == 401 and says in refused.json()["error"]["message"]
        until(lambda: statement(world.database, month()).requests >= 1)
        assert statement(world.database, month()).lines[0].key == "token/alice"
        roles = {"operator": (200, 200), "clerk": (200, 403), "guest": (401, 401)}
        for role, statuses in roles.items():
            headers = bearer(provider.token(roles=[role]).decode())
            found = running.http.get("/admin/v1/projects", headers=headers).status_code
            made = running.http.post(
                "/admin/v1/organisations", json={"name": f"by-{role}"}, headers=headers
            ).status_code
            assert (found, made) == statuses
        assert world.registry.audit(None, 100)[0].action in ("key.refused", "organisation.create")
        # Without its keys, one comes back later; those of the database are taken all the same.
        provider.broken = "<html>"
        late = world.gateway(issuer=Issuer(provider.options(), Clock()))
        refused = ask(late, good)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "identity_provider_unavailable"
        assert ask(late, secret).status_code == 200
    world.database.close()


def test_refused_secrets_are_recorded_together(world: World) -> None:
    gateway = world.gateway()
    for _ in range(5):
        assert gateway.http.get("/v1/models", headers=bearer("penstock-guessed")).status_code == 401
    assert gateway.http.get("/admin/v1/keys", headers=bearer("penstock-guessed")).status_code == 401

    def found() -> int:
        entries = [each for each in world.registry.audit(None, 100) if each.action == "key.refused"]
        assert all("guessed" not in bytes(each.detail).decode() for each in entries)
        return sum(json.loads(bytes(each.detail))["times"] for each in entries)

    until(lambda: found() == 6)
