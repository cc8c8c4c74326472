"""A gateway with a database of tenants: keys that come and go, what they may ask for, money, and administrators."""

import contextlib
import csv
import io
import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.conftest import Gateway, Start
from penstock.database.connection import Database
from penstock.gateway.admin import AdminApi
from penstock.gateway.guardrail_options import Guardrail
from penstock.gateway.tenants import Tenants
from penstock.metering.prices import Price
from penstock.server.dialects import DIALECTS
from penstock.tenancy.oidc import Issuer
from penstock.tenancy.registry import Registry
from penstock.tenancy.settings import Settings, changed
from penstock.tenancy.statement import statement
from support.identity_provider import Clock, Provider
from support.postgres import PostgresServer
from support.providers import chunk, provider, says
from support.scripted_http import Received, Script, Step, answer, scripted, stream, text_chunk, usage_chunk
from support.waiting import PATIENCE, until

# 7 tokens at 1 and 5 at 2 for a million: 17 millionths a request.
ANSWER = json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}).encode()
PRICE = Price(model="scripted", input=Decimal(1), output=Decimal(2))
COST = Decimal("0.000017")


class World:
    """A database of tenants, and gateways that follow it."""

    def __init__(self, start: Start, url: str, folder: Path) -> None:
        self.url, self.database = url, Database.open(url)
        self.database.upgrade()
        self.registry = Registry(self.database)
        self.registry.create_organisation("test", "acme", Settings())
        self.registry.create_project("test", "acme.web", Settings())
        self._start, self._folder, self._gateways = start, folder, itertools.count()

    def gateway(
        self, script: Script = lambda _request: answer(ANSWER), issuer: Issuer | None = None, **options: Any
    ) -> Gateway:
        """One more, with a journal of its own."""
        tenants = Tenants(Database.open(self.url), self._folder / f"journal-{next(self._gateways)}", issuer)
        return self._start(script, tenants=tenants, **{"price": (PRICE,), **options})

    def key(self, project: str | None = "acme.web", role: Any = "member", **fields: Any) -> tuple[str, str]:
        """The id of a new key, and the key."""
        key, secret = self.registry.create_key("test", "k", project, changed(Settings(), fields), role=role)
        return key.id, secret


@pytest.fixture
def world(gateway: Start, database_url: str, tmp_path: Path) -> Iterator[World]:
    made = World(gateway, database_url, tmp_path)
    yield made
    made.database.close()


def ask(gateway: Gateway, secret: str, path: str = "/v1/completions", **fields: Any) -> httpx.Response:
    body = {"model": "scripted", "prompt": "the fox", **fields}
    return gateway.http.post(path, json=body, headers=bearer(secret))


def chat(gateway: Gateway, secret: str, **fields: Any) -> httpx.Response:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hello"}], **fields}
    return gateway.http.post("/v1/chat/completions", json=body, headers=bearer(secret))


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def knows(gateway: Gateway, secret: str) -> None:
    """Wait until a key is taken: a gateway looks at the database now and then."""
    until(lambda: gateway.http.get("/v1/models", headers=bearer(secret)).status_code == 200)


def month() -> str:
    """The one that it is."""
    return datetime.now(UTC).strftime("%Y-%m")


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


@pytest.mark.parametrize("whose", ["key", "project", "organisation"])
def test_a_budget_holds_and_is_known_after_a_restart(world: World, whose: str) -> None:
    budget = {"budget_per_day": str(3 * COST + Decimal("0.000001"))}
    _, secret = world.key(**(budget if whose == "key" else {}))
    if whose == "project":
        world.registry.set_project("test", "acme.web", changed(Settings(), budget))
    elif whose == "organisation":
        world.registry.set_organisation("test", "acme", changed(Settings(), budget))
    gateway = world.gateway()
    # It could cost 2 for the prompt and 10 for the answer, and costs 17.
    assert [ask(gateway, secret, max_tokens=5).status_code for _ in range(4)] == [200, 200, 200, 402]
    refused = ask(gateway, secret, max_tokens=5)
    owner = {"key": "This API key has", "project": "Keys of the project acme.web have"}.get(whose, "Keys of the org")
    error = refused.json()["error"]
    assert error["code"] == "budget_exceeded" and error["message"].startswith(owner)
    assert "a budget of 0.000052 for the day 20" in error["message"] and "0.000051 are used" in error["message"]
    until(lambda: statement(world.database, month()).requests == 3)
    assert ask(world.gateway(), secret, max_tokens=5).status_code == 402

    def told() -> list[tuple[str, float]]:
        found = [each for each in world.registry.audit(None, 100) if each.action == "budget.share"]
        return [(each.subject.partition("/")[0], json.loads(bytes(each.detail))["share"]) for each in found][::-1]

    # 29, 46 and too many of 52 are used or reserved; the second gateway's refusal is not told again.
    until(lambda: [share for _, share in told()] == [0.5, 0.8, 1.0])
    assert {owner for owner, _ in told()} == {whose}


def test_a_budget_has_to_have_room_for_the_answers_of_all_prompts(world: World) -> None:
    _, secret = world.key(budget_per_day="0.001")
    gateway = world.gateway()
    refused = ask(gateway, secret, prompt=["the fox"] * 50, max_tokens=100)
    assert refused.status_code == 402 and "may cost 0.010125" in refused.json()["error"]["message"]
    assert ask(gateway, secret, prompt=["the fox"] * 4, max_tokens=100).status_code == 200
    assert gateway.asked == [1]


def test_money_is_reserved_before_it_is_spent(world: World) -> None:
    """Of many that come together, no more are let through than the budget is enough for at the most they may cost."""
    _, secret = world.key(budget_per_month="0.00005")
    going = list[bool]()
    gateway = world.gateway(lambda _request: stream(text_chunk("a"), lambda: bool(going), usage_chunk(2, 1)))
    with contextlib.ExitStack() as stack:
        body = {"model": "scripted", "prompt": "the fox", "stream": True, "max_tokens": 10}

        def begin() -> int:
            sent = gateway.http.stream("POST", "/v1/completions", json=body, headers=bearer(secret))
            return stack.enter_context(sent).status_code

        # Each may cost 22 millionths of the 50, and costs 4.
        assert [begin() for _ in range(3)] == [200, 200, 402]
        going.append(True)
    until(lambda: statement(world.database, month()).requests == 2)
    assert ask(gateway, secret, max_tokens=10).status_code == 200
    assert statement(world.database, month()).cost == 2 * Decimal("0.000004")


def test_a_model_without_a_price(world: World) -> None:
    _, plain = world.key()
    _, bounded = world.key(budget_per_day=1)
    gateway = world.gateway(price=(), free=())
    assert ask(gateway, plain).status_code == 200
    refused = ask(gateway, bounded)
    assert refused.status_code == 400 and "The model scripted has no price" in refused.json()["error"]["message"]
    until(lambda: statement(world.database, month()).requests == 1)
    told = statement(world.database, month())
    assert told.cost == 0 and told.lines[0].unpriced_requests == 1
    assert ask(world.gateway(price=(), free=("scripted",)), bounded).status_code == 200
    other = Price(model="other", input=Decimal(1), output=Decimal(1))
    assert ask(world.gateway(price=(other,)), plain).status_code == 400


def test_tokens_that_are_only_counted_cost_nothing(world: World) -> None:
    """No model has read them. Vectors have no tokens either, also where a server does not tell what it used."""
    _, secret = world.key()
    gateway = world.gateway(lambda _request: answer(b'{"input_tokens": 7, "tokens": [1, 2, 3, 4, 5, 6, 7]}'))
    for path in ("/v1/messages/count_tokens", "/v1/responses/input_tokens"):
        assert ask(gateway, secret, path=path).status_code == 200
    until(lambda: statement(world.database, month()).requests == 2)
    (line,) = statement(world.database, month()).lines
    assert (line.prompt_tokens, line.output_tokens, line.cost, line.estimated_requests) == (0, 0, 0, 0)
    assert ask(gateway, secret, path="/v1/embeddings").status_code == 200
    until(lambda: statement(world.database, month()).requests == 3)
    (line,) = statement(world.database, month()).lines
    assert (line.prompt_tokens, line.output_tokens, line.estimated_requests) == (2, 0, 1)


def test_what_failed_costs_nothing_and_what_was_left_costs_what_came(world: World) -> None:
    _, secret = world.key()
    left = list[bool]()

    def script(request: Received) -> list[Step]:
        if request.body["prompt"] == "fail":
            return answer(b'{"error": {"message": "no"}}', status=400)
        return stream(text_chunk("a"), text_chunk("b"), lambda: bool(left), text_chunk("c"), usage_chunk(7, 5))

    gateway = world.gateway(script)
    assert ask(gateway, secret, prompt="fail").status_code == 400
    sent = gateway.http.stream(
        "POST",
        "/v1/completions",
        json={"model": "scripted", "prompt": "the fox", "stream": True},
        headers=bearer(secret),
    )
    with sent as response:
        lines = response.iter_lines()
        assert '"a"' in next(lines) and next(lines) == "" and '"b"' in next(lines)
    until(lambda: statement(world.database, month()).requests == 2)
    (line,) = statement(world.database, month()).lines
    # Nothing said what it used: its prompt has 2 tokens by its bytes, and two events came.
    assert (line.prompt_tokens, line.output_tokens, line.estimated_requests) == (2, 2, 1)
    assert line.cost == Decimal("0.000006")
    left.append(True)


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


def test_administrators_see_what_tenants_use_and_tenants_do_not(gateway: Start, tmp_path: Path) -> None:
    world = World(gateway, str(tmp_path / "tenants.sqlite"), tmp_path)
    _, secret = world.key()
    _, auditor = world.key(None, "auditor")
    running = world.gateway()
    assert [ask(running, secret).status_code for _ in range(2)] == [200, 200]
    assert ask(running, secret, model='\n"{x').status_code == 404
    ledger = running.dispatch.ledger
    # It knows that the database has its entries a moment after that.
    until(lambda: statement(world.database, month()).requests == 2 and ledger is not None and not ledger.pending)
    seen = running.http.get("/admin/v1/metrics", headers=bearer(auditor)).text
    labels = 'tenant="acme.web",model="scripted"'
    for line in (
        f'penstock_gateway_tokens_total{{{labels},of="prompt"}} 14.0',
        f'penstock_gateway_tokens_total{{{labels},of="output"}} 10.0',
        f"penstock_gateway_cost_total{{{labels}}} 3.4e-05",
        "penstock_gateway_database_away 0.0",
        "penstock_gateway_ledger_waiting 0.0",
        "penstock_gateway_limits_apart 0.0",
    ):
        assert line in seen.splitlines()
    assert "acme" not in running.http.get("/metrics", headers=bearer(secret)).text
    (way, *_) = [
        each for each in running.http.get("/v1/requests", headers=bearer(secret)).json()["data"] if "cost" in each
    ]
    assert (way["cost"], way["used"]) == ("0.000017", {"prompt": 7, "cached": 0, "output": 5})
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


def admin_routes() -> list[tuple[str, str]]:
    """Every route below /admin/v1, with its method."""
    api = AdminApi(None, None, None, DIALECTS, bytes, None, list)  # type: ignore[arg-type]
    return sorted((method, route.path) for route in api.routes() for method in route.methods or ())


def test_who_may_administer(gateway: Start, tmp_path: Path) -> None:
    """Each route answers administrators only, and auditors where it changes nothing."""
    world = World(gateway, str(tmp_path / "tenants.sqlite"), tmp_path)
    keys = {who: world.key(None, who) for who in ("auditor", "admin")} | {"member": world.key()}
    revoked, secret = world.key(None, "admin")
    world.registry.revoke_key("test", revoked)
    secrets = {"unknown": "penstock-guessed", "revoked": secret, **{who: key[1] for who, key in keys.items()}}
    running = world.gateway()
    for method, path in admin_routes():
        url = path.format(name="acme.none" if "/projects/" in path else "none", id="key_none")
        told = {
            who: running.http.request(method, url, headers=bearer(each)).status_code for who, each in secrets.items()
        }
        told["nothing"] = running.http.request(method, url).status_code
        assert {told.pop(who) for who in ("nothing", "unknown", "member", "revoked")} == {401}, (method, path)
        assert (told["auditor"] == 403) == (method not in ("GET", "HEAD")), (method, path)
        assert told["admin"] not in (401, 403, 405, 500), (method, path)
    world.database.close()


def test_an_administrator_makes_a_tenant_from_afar(world: World) -> None:
    _, admin = world.key(None, "admin")
    gateway = world.gateway()
    with httpx.Client(base_url=f"{gateway.url}/admin/v1", headers=bearer(admin), timeout=PATIENCE) as http:
        administer(world, gateway, http)


def administer(world: World, gateway: Gateway, http: httpx.Client) -> None:
    def post(path: str, **body: Any) -> Any:
        answered = http.post(path, json=body)
        assert answered.status_code == 200, answered.text
        return answered.json()

    post("/organisations", name="zoo", settings={"budget_per_month": "50.00"})
    post("/projects", name="zoo.lions", settings={"requests_per_minute": 600, "weight": 2.0})
    key = post("/keys", name="cage", project="zoo.lions", settings={"models": ["scripted"]}, expires_in=3600)
    assert key["shown"] == key["key"][: len(key["shown"])] and "digest" not in key
    knows(gateway, key["key"])
    assert ask(gateway, key["key"]).headers["x-ratelimit-limit-requests"] == "600"
    assert http.patch(f"/keys/{key['id']}", json={"models": ["else"]}).json()["settings"] == {"models": ["else"]}
    until(lambda: ask(gateway, key["key"]).status_code == 403)
    assert http.patch("/projects/zoo.lions", json={"weight": None}).json()["settings"] == {"requests_per_minute": 600}
    assert http.patch("/organisations/zoo", json={"budget_per_day": "1"}).status_code == 200
    new = post(f"/keys/{key['id']}/rotate", overlap=0)
    knows(gateway, new["key"])
    assert ask(gateway, key["key"]).status_code == 401
    assert post(f"/keys/{new['id']}/revoke", end_streams=True)["revoked_at"] is not None
    assert http.delete("/projects/zoo.lions").json() == {"closed": "zoo.lions"}
    assert http.delete("/organisations/zoo").json() == {"closed": "zoo"}
    assert [each["name"] for each in http.get("/projects").json()["data"]] == ["acme.web", "zoo.lions"]
    assert [each["name"] for each in http.get("/organisations").json()["data"]] == ["acme", "zoo"]
    listed = http.get("/keys", params={"project": "zoo.lions"}).json()["data"]
    assert {each["id"] for each in listed} == {key["id"], new["id"]} and all("digest" not in each for each in listed)
    audited = [each["action"] for each in http.get("/audit", params={"limit": 200}).json()["data"]]
    # That a key was refused is noted some time after it was.
    actions = [action for action in audited if action != "key.refused"]
    assert actions[0] == "organisation.close" and actions.count("key.create") == 2
    page = http.get("/audit", params={"limit": 2}).json()
    rest = http.get("/audit", params={"before": page["data"][-1]["sequence"], "limit": 200}).json()
    assert len(page["data"]) == 2 and page["has_more"] and not rest["has_more"]
    both = [*page["data"], *rest["data"]]
    assert [each["action"] for each in both if each["action"] != "key.refused"] == actions
    assert [each["sequence"] for each in both] == sorted((each["sequence"] for each in both), reverse=True)
    until(lambda: statement(world.database, month(), "zoo").requests >= 1)
    told = http.get("/statement", params={"period": month(), "organisation": "zoo"}).json()
    assert told["lines"][0]["key_name"] == "cage" and Decimal(told["cost"]) == told["requests"] * COST
    table = http.get("/statement", params={"period": month(), "organisation": "zoo", "format": "csv"})
    assert table.headers["content-type"].startswith("text/csv")
    days = {"first": f"{month()}-01", "last": datetime.now(UTC).strftime("%Y-%m-%d")}
    spent = http.get("/spending", params={**days, "by": "project", "of": "zoo"}).json()
    assert [(each["name"], each["cost"]) for each in spent["totals"]] == [("zoo.lions", told["cost"])]
    assert http.get("/spending", params={**days, "of": "zoo.bears"}).status_code == 404
    used = http.get("/keys", params={"project": "zoo.lions", "search": key["id"]}).json()["data"]
    assert [(each["last_used_on"], each["state"]) for each in used] == [(days["last"], "expired")]
    assert [row["project"] for row in csv.DictReader(io.StringIO(table.text))] == ["zoo.lions"]


def test_limits_in_use_are_seen(gateway: Start, tmp_path: Path) -> None:
    world = World(gateway, str(tmp_path / "tenants.sqlite"), tmp_path)
    identifier, secret = world.key(requests_per_minute=10, budget_per_day="0.00017")
    world.registry.set_organisation("test", "acme", Settings(max_concurrent_requests=4))
    world.registry.set_project("test", "acme.web", Settings(tokens_per_minute=1200))
    _, auditor = world.key(None, "auditor")
    going = list[bool]()
    running = world.gateway(lambda _request: stream(text_chunk("a"), lambda: bool(going), usage_chunk(7, 5)))
    body = {"model": "scripted", "prompt": "the fox", "stream": True, "max_tokens": 5}

    def seen(**given: str) -> dict[tuple[str, str], tuple[Any, float]]:
        told = running.http.get("/admin/v1/limits", params=given, headers=bearer(auditor)).json()
        assert told["apart"] is None and not told["has_more"]
        return {(each["owner"], each["limit"]): (each["used"], each["share"]) for each in told["data"]}

    with running.http.stream("POST", "/v1/completions", json=body, headers=bearer(secret)) as response:
        assert response.status_code == 200
        assert seen()["organisation/acme", "max_concurrent_requests"] == (1, 0.25)
        # What it may cost at most is reserved: 2 tokens of its prompt by its bytes, 5 of an answer.
        assert seen(project="acme.web") == {
            ("project/acme.web", "tokens_per_minute"): (7, pytest.approx(7 / 1200)),
            (f"key/{identifier}", "requests_per_minute"): (1, 0.1),
            (f"key/{identifier}", "budget_per_day"): ("0.000012", pytest.approx(12 / 170)),
        }
        going.append(True)
        response.read()
    until(lambda: seen()["organisation/acme", "max_concurrent_requests"] == (0, 0.0))
    assert seen(organisation="acme")["project/acme.web", "tokens_per_minute"] == (12, 0.01)
    assert seen(project="acme.web")[f"key/{identifier}", "budget_per_day"] == ("0.000017", 0.1)
    for given, status in (({"organisation": "no"}, 404), ({"project": "acme.web", "organisation": "acme"}, 400)):
        assert running.http.get("/admin/v1/limits", params=given, headers=bearer(auditor)).status_code == status
    who = running.http.get("/admin/v1/administrator", headers=bearer(auditor)).json()
    assert who["role"] == "auditor" and who["id"].startswith("key_")
    world.database.close()


def test_a_gateway_without_tenants_says_so(gateway: Start) -> None:
    refused = gateway(lambda _request: answer(ANSWER)).http.get("/admin/v1/administrator", headers=bearer("a"))
    assert refused.status_code == 404 and "has no database of tenants" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/organisations", {"name": "a b"}, "name: is 'a b'"),
        ("/organisations", {"name": "x", "settings": {"budget_per_day": "-1"}}, "budget_per_day: is -1"),
        ("/organisations", {"name": "x", "settings": {"models": ["*"]}}, "is a pattern"),
        ("/organisations", {"called": "x"}, "unknown field `called`"),
        ("/projects", {"name": "x"}, "ORGANISATION.PROJECT"),
        ("/keys", {"name": "x", "project": "acme.web", "role": "king"}, "Invalid enum value 'king'"),
        ("/keys", {"name": "x", "project": "acme.web", "expires_in": -1}, "expires_in: is -1"),
        ("/keys/key_0/rotate", {}, "There is no key 'key_0'"),
    ],
)
def test_what_administrators_get_wrong(
    gateway: Start, tmp_path: Path, path: str, body: dict[str, Any], says: str
) -> None:
    world = World(gateway, str(tmp_path / "tenants.sqlite"), tmp_path)
    _, admin = world.key(None, "admin")
    refused = world.gateway().http.post(f"/admin/v1{path}", json=body, headers=bearer(admin))
    assert 400 <= refused.status_code < 500 and says in refused.json()["error"]["message"]
    world.database.close()


def test_null_characters_are_refused(world: World) -> None:
    """PostgreSQL cannot look for them."""
    _, admin = world.key(None, "admin")
    http = world.gateway().http
    for method, path in (("GET", "keys?search=%00"), ("GET", "statement?period=%00"), ("PATCH", "keys/a%00b")):
        refused = http.request(method, f"/admin/v1/{path}", json={}, headers=bearer(admin))
        assert refused.status_code == 400 and "has a null character" in refused.json()["error"]["message"]


def test_what_administrators_ask_wrongly_shows_nothing(gateway: Start, tmp_path: Path) -> None:
    """A name with a slip in it would show what everybody has used."""
    world = World(gateway, str(tmp_path / "tenants.sqlite"), tmp_path)
    _, auditor = world.key(None, "auditor")
    running = world.gateway()
    for path, status, message in (
        ("statement?period=2026-11&organization=acme", 400, "organization: is no parameter of this path; there are"),
        ("statement?period=2026-11&organisation=acme&organisation=zoo", 400, "organisation: is there twice"),
        ("statement?period=2026-11&organisation=zoo", 404, "There is no organisation 'zoo'"),
        ("keys?projekt=acme.web", 400, "projekt: is no parameter"),
        ("projects?limit=1", 400, "limit: is no parameter of this path; there are none here."),
        ("limits?project=zoo", 404, "There is no project 'zoo'"),
        ("limits?organisation=acme.web", 404, "There is no organisation 'acme.web'"),
    ):
        refused = running.http.get(f"/admin/v1/{path}", headers=bearer(auditor))
        assert refused.status_code == status and refused.json()["error"]["message"].startswith(message)
    world.database.close()


def test_an_answer_that_is_given_again_is_in_the_ledger_and_costs_nothing(world: World) -> None:
    world.registry.create_project("test", "acme.mobile", Settings())
    world.registry.set_organisation("test", "acme", Settings(answer_cache_seconds=3600))
    (_, web), (_, phone) = world.key(), world.key("acme.mobile")
    _, never = world.key(answer_cache_seconds=0)
    gateway = world.gateway()
    found = [ask(gateway, key).headers.get("x-penstock-cache") for key in (web, web, phone, never, web)]
    assert found == ["miss", "hit", "miss", None, "hit"]
    until(lambda: statement(world.database, month()).requests == 5)
    told = statement(world.database, month())
    assert told.cost == 3 * COST
    assert sorted((each.project, each.requests, each.cached_answers, each.cost) for each in told.lines) == [
        ("acme.mobile", 1, 0, COST),
        ("acme.web", 1, 0, COST),
        ("acme.web", 3, 2, COST),
    ]
    assert all(each.estimated_requests == each.unpriced_requests == 0 for each in told.lines)


def test_an_answer_that_a_guardrail_refuses_is_paid_for(world: World) -> None:
    _, secret = world.key()
    with scripted(lambda _: answer(b'{"action": "deny"}')) as server:
        rail = Guardrail(name="rail", url=server.base, when="after", seconds=PATIENCE)
        assert ask(world.gateway(guardrail=(rail,)), secret).status_code == 400
        until(lambda: statement(world.database, month()).requests == 1)
    assert statement(world.database, month()).cost == COST
