"""Parts of requests that get another model, and copies of them that go to one."""

import asyncio
import contextlib
import json
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conftest import Gateway, Start, month, wait_for_a_day
from penstock.core.errors import ConfigurationError
from penstock.database.connection import Database
from penstock.gateway.asked import parse_asked
from penstock.gateway.tenants import Tenants
from penstock.gateway.trials import Shadow, Shadows, Split, Splits, conversation
from penstock.tenancy.registry import Registry
from penstock.tenancy.settings import Settings
from penstock.tenancy.statement import statement
from support.providers import provider, says
from support.scripted_http import Script, answer, whole_answer
from support.waiting import until

SPLIT = Split(name="new", model="a", to="b", percent=10)


def test_a_part_of_conversations_gets_the_other_model() -> None:
    splits = Splits([SPLIT])
    sessions = [f"user {number}" for number in range(2000)]
    got = [session for session in sessions if splits.model("a", session) == "b"]
    assert 150 < len(got) < 250
    assert splits.model("c", "user 1") is None and splits.model(None, None) is None
    assert got == [session for session in sessions if splits.model("a", session) == "b"]


@given(st.text(max_size=30), st.floats(0, 100), st.floats(0, 100))
def test_a_conversation_stays_while_the_part_grows(session: str, one: float, other: float) -> None:
    splits = Splits([SPLIT])
    splits.set("new", min(one, other))
    before = splits.model("a", session)
    splits.set("new", max(one, other))
    assert before is None or splits.model("a", session) == before


def test_requests_without_a_conversation_are_drawn() -> None:
    draws = iter([0.05, 0.1, 0.099, 0.9])
    splits = Splits([SPLIT], draw=lambda: next(draws))
    assert [splits.model("a", None) for _ in range(4)] == ["b", None, "b", None]


def test_a_split_is_turned_off_and_on() -> None:
    splits = Splits([SPLIT], draw=lambda: 0.0)
    assert splits.set("new", 0) and splits.model("a", None) is None
    assert splits.set("new", 100) and splits.model("a", "x") == "b"
    assert not splits.set("other", 10)


def test_a_split_whose_requests_fail_turns_itself_off() -> None:
    splits = Splits([SPLIT], draw=lambda: 0.0)
    for number in range(19):
        splits.ended("a", failed=number < 3)
    assert splits.model("a", None) == "b"
    splits.ended("a", failed=False)
    assert splits.model("a", None) is None
    assert splits.told()[0]["stopped"] == "3 of the last 20 requests failed"
    splits.set("new", 10)
    assert splits.model("a", None) == "b" and splits.told()[0]["stopped"] is None


def test_one_that_never_turns_itself_off() -> None:
    splits = Splits([Split(name="new", model="a", to="b", percent=10, most_failures=None)], draw=lambda: 0.0)
    for _ in range(200):
        splits.ended("a", failed=True)
    assert splits.model("a", None) == "b"


def test_copies_are_made_of_a_part_and_of_no_more_than_may_be_under_way() -> None:
    async def story() -> None:
        draws = (number % 2 * 0.9 for number in count())
        shadows = Shadows([Shadow(model="a", to="b", percent=50, most_requests=2)], draw=lambda: next(draws))
        asked, done, copies = list[str](), asyncio.Event(), list[asyncio.Task[None]]()

        async def ask(model: str) -> None:
            asked.append(model)
            await done.wait()

        def copy(model: str) -> asyncio.Task[None]:
            copies.append(asyncio.create_task(ask(model)))
            return copies[-1]

        for _ in range(3):
            shadows.follow("a", copy)
            await asyncio.sleep(0)
        assert asked == ["b", "b"]
        shadows.follow("c", copy)
        shadows.follow("a", copy)
        await asyncio.sleep(0)
        assert asked == ["b", "b"]
        done.set()
        await asyncio.wait(copies)
        for _ in range(2):
            shadows.follow("a", copy)
            await asyncio.sleep(0)
        assert len(asked) == 3

    asyncio.run(story())


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"name": "New"}, "small letters"),
        ({"to": "a"}, "two models"),
        ({"percent": 101}, "from 0 to 100"),
        ({"percent": float("nan")}, "from 0 to 100"),
        ({"most_failures": 0}, "above 0"),
    ],
)
def test_what_cannot_be(fields: dict[str, object], cause: str) -> None:
    made = Split(**{"name": "new", "model": "a", "to": "b", "percent": 10, **fields})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=cause):
        made.check()


def test_two_splits_of_one_model_cannot_be() -> None:
    with pytest.raises(ConfigurationError, match="Two splits have the model a"):
        Splits([SPLIT, Split(name="other", model="a", to="c", percent=1)])


CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
TO_OTHER = Split(name="new", model="scripted", to="other", percent=100)


def ask(gateway: Gateway, key: str = "") -> str:
    """Who has answered."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    answered = gateway.http.post("/v1/chat/completions", json=CHAT, headers=headers)
    return f"{answered.status_code} {answered.headers.get('x-penstock-replica')}"


def test_requests_of_a_split_get_the_other_model(gateway: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    with provider(monkeypatch, says("a"), model="other") as (offered, _):
        started = gateway(whole_answer, provider=(offered,), split=(TO_OTHER,))
        assert [ask(started) for _ in range(22)] == ["200 provider/hosted"] * 22
        assert started.dispatch.splits.set("new", 0)
        assert ask(started) == f"200 {started.servers[0].base}"


def test_what_the_other_model_cannot_answer_keeps_its_own(gateway: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A completion, a field of own machines, and a model that is not there."""
    with provider(monkeypatch, says("a"), model="other") as (offered, server):
        started = gateway(whole_answer, provider=(offered,), split=(TO_OTHER,))
        machine = started.servers[0].base
        assert started.complete(max_tokens=2).headers["x-penstock-replica"] == machine
        own = started.http.post("/v1/chat/completions", json={**CHAT, "top_k": 5})
        assert own.headers["x-penstock-replica"] == machine and not server.asked
    wrong = Split(name="new", model="scripted", to="mistyped", percent=100)
    assert ask(gateway(whole_answer, split=(wrong,))).startswith("200")


@given(st.lists(st.text(max_size=20), min_size=1, max_size=4), st.text(max_size=9))
def test_a_conversation_is_known_from_its_first_request_on(turns: list[str], system: str) -> None:
    messages, known = [{"role": "system", "content": system}], set[str | None]()
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        known.add(conversation(parse_asked(json.dumps({"messages": messages}).encode()), None))
        messages.append({"role": "assistant", "content": "yes"})
    assert len(known) == 1 and None not in known
    assert conversation(parse_asked(b"{}"), "named") == "named"


def test_a_split_whose_model_fails_ends(gateway: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    failing: Script = lambda _request: answer(b"{}", 500)  # noqa: E731
    with provider(monkeypatch, failing, model="other") as (offered, server):
        started = gateway(whole_answer, provider=(offered,), split=(TO_OTHER,))
        machine = f"200 {started.servers[0].base}"
        until(lambda: ask(started) == machine)
        assert len(server.asked) <= 20 and started.dispatch.splits.told()[0]["stopped"] is not None
        assert ask(started) == machine


def test_administrators_change_splits_of_running_gateways(
    gateway: Start, monkeypatch: pytest.MonkeyPatch, database_url: str, tmp_path: Path
) -> None:
    """What turned itself off stays off when something else is changed, and goes on once it is set."""
    with contextlib.ExitStack() as stack:
        offered, _ = stack.enter_context(provider(monkeypatch, says("a"), model="other"))
        database = stack.enter_context(contextlib.closing(Database.open(database_url)))
        database.upgrade()
        registry = Registry(database)
        registry.create_organisation("test", "acme", Settings())
        registry.create_project("test", "acme.web", Settings())
        key = registry.create_key("test", "k", "acme.web", Settings())[1]
        admin = {"authorization": f"Bearer {registry.create_key('test', 'a', None, role='admin')[1]}"}
        auditor = {"authorization": f"Bearer {registry.create_key('test', 'b', None, role='auditor')[1]}"}
        tenants = [Tenants(Database.open(database_url), tmp_path / name) for name in ("one", "two")]
        fields: dict[str, object] = {"provider": (offered,), "split": (TO_OTHER,), "free": ("scripted",)}
        one, two = (gateway(whole_answer, tenants=each, **fields) for each in tenants)
        assert ask(one, key) == ask(two, key) == "200 provider/hosted"
        changed = one.http.patch("/admin/v1/splits/new", json={"percent": 0}, headers=admin)
        assert changed.json() == {"name": "new", "percent": 0}
        for each in (one, two):
            until(lambda each=each: ask(each, key) == f"200 {each.servers[0].base}")  # type: ignore[misc]
        for body, headers, status in (({"percent": 5}, auditor, 403), ({"percent": 101}, admin, 400)):
            assert one.http.patch("/admin/v1/splits/new", json=body, headers=headers).status_code == status
        assert one.http.patch("/admin/v1/splits/old", json={"percent": 1}, headers=admin).status_code == 404
        registry.set_split("test", "new", 100)
        until(lambda: ask(one, key) == "200 provider/hosted")
        for _ in range(30):
            one.dispatch.splits.ended("scripted", failed=True)
        registry.create_project("test", "acme.more", Settings())
        until(lambda: tenants[0].following.directory.revision == registry.changes().revision)
        [told] = one.http.get("/admin/v1/splits", headers=auditor).json()["data"]
        assert (told["percent"], told["to"]) == (100, "other") and "failed" in told["stopped"]
        registry.set_split("test", "new", 100)
        until(lambda: one.dispatch.splits.told()[0]["stopped"] is None)


def test_copies_change_nothing_for_clients(gateway: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nor does it cost them anything, and a project whose requests must stay on own machines has none."""
    wait_for_a_day()
    with contextlib.ExitStack() as stack:
        offered, server = stack.enter_context(provider(monkeypatch, says("a", "b"), model="other"))
        database = stack.enter_context(contextlib.closing(Database.open(str(tmp_path / "tenants.sqlite"))))
        database.upgrade()
        registry = Registry(database)
        registry.create_organisation("test", "acme", Settings())
        keys = {}
        for name, settings in (("web", Settings()), ("secret", Settings(privacy_classes=("own",)))):
            registry.create_project("test", f"acme.{name}", settings)
            keys[name] = registry.create_key("test", "k", f"acme.{name}", Settings())[1]
        tenants = Tenants(Database.open(str(tmp_path / "tenants.sqlite")), tmp_path / "journal")
        shadow = Shadow(model="scripted", to="other", percent=100)
        started = gateway(whole_answer, tenants=tenants, provider=(offered,), shadow=(shadow,), free=("scripted",))
        machine = f"200 {started.servers[0].base}"
        assert [ask(started, key) for key in keys.values()] == [machine, machine]
        figures = started.dispatch.figures
        until(lambda: figures.copies.total() == 2)
        assert (figures.copies["answered"], figures.copies["invalid"]) == (1, 1) and len(server.asked) == 1
        assert server.asked[0].body["messages"] == CHAT["messages"]
        # A client has its answer a moment before it is counted.
        until(lambda: figures.requests["answered"] == 2)
        until(lambda: statement(database, month()).requests == 3)
        costs = {line.project: line.cost for line in statement(database, month()).lines}
        assert costs["shadow"] > 0 and costs["acme.web"] == costs["acme.secret"] == 0
