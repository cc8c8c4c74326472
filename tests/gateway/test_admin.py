"""Administrators of a gateway: what they see and change, who may, and what they get wrong."""

import csv
import io
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.conftest import ANSWER, COST, Gateway, Start, World, ask, bearer, knows, month
from penstock.gateway.admin import AdminApi
from penstock.server.dialects import DIALECTS
from penstock.tenancy.settings import Settings
from penstock.tenancy.statement import statement
from support.scripted_http import answer, stream, text_chunk, usage_chunk
from support.waiting import PATIENCE, until


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
    asked = list[int]()
    until(lambda: asked.append(ask(gateway, key["key"]).status_code) or asked[-1] == 403)
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
    # All that were answered: one before those, and all of those but the last.
    until(lambda: statement(world.database, month(), "zoo").requests == len(asked))
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
