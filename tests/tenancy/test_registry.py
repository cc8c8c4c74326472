"""Organisations, projects and keys in a database, and a directory that follows it."""

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.access.errors import InvalidApiKey
from penstock.core.errors import InvalidParameter, RequestError
from penstock.core.usage import Used
from penstock.database.connection import Database
from penstock.tenancy.directory import Directory
from penstock.tenancy.entries import Entry
from penstock.tenancy.errors import AlreadyThere, NotThere
from penstock.tenancy.ledger import enter
from penstock.tenancy.records import ApiKey
from penstock.tenancy.registry import Registry
from penstock.tenancy.settings import Settings


class Clock:
    """A clock that stands until it is set."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(database: Database, clock: Clock) -> Registry:
    made = Registry(database, clock)
    made.create_organisation("me", "acme", Settings(requests_per_minute=100))
    made.create_project("me", "acme.search", Settings(models=("haiku",), weight=2.0))
    return made


def follow(registry: Registry, directory: Directory) -> list[str]:
    """What the directory learns in one look: the keys whose requests end."""
    return directory.learn(registry.changes(directory.revision))


def test_a_key_asks_for_its_project(registry: Registry, clock: Clock) -> None:
    directory = Directory(clock)
    key, secret = registry.create_key("me", "web", "acme.search", Settings(tokens_per_minute=5))
    assert key.shown == secret[: len(key.shown)] and len(key.shown) < 20
    follow(registry, directory)
    tenant = directory.find(secret.encode())
    assert (tenant.name, tenant.organisation, tenant.key, tenant.weight) == ("acme.search", "acme", key.id, 2.0)
    assert [level.owner for level in tenant.levels] == [f"key/{key.id}", "organisation/acme"]
    assert tenant.permits.models == frozenset(["haiku"])
    assert directory.may_ask("acme.search") and not directory.may_ask("acme")
    kept = directory.tenant("acme.search")
    assert kept is not None and kept.key == "" and directory.tenant("acme.other") is None


def test_keys_are_listed_by_the_page(registry: Registry, clock: Clock, database: Database) -> None:
    registry.create_project("me", "acme.web", Settings())
    made = list[str]()
    for number in range(7):
        # Some are made at the same time.
        clock.now += number % 2
        project = "acme.web" if number == 3 else "acme.search"
        made.append(registry.create_key("me", f"Web-{number}", project)[0].id)
    boss, _ = registry.create_key("me", "boss", None, role="admin")

    def listed(**given: Any) -> list[str]:
        return [each.key.id for each in registry.list_keys(**given)]

    everything = listed()
    assert sorted(everything) == sorted([*made, boss.id]) and everything[-1] == made[0]
    pages, last = list[str](), None
    while some := listed(after=last, most=3):
        pages += some
        last = some[-1]
    assert pages == everything
    assert listed(project="acme.web") == [made[3]] and listed(project="") == [boss.id]
    assert listed(search="web-5") == [made[5]] and listed(search="%") == [] and listed(search=boss.shown) == [boss.id]
    assert listed(project="acme.search", search=made[2][-9:].upper()) == [made[2]]
    for unknown in ({"project": "acme.none"}, {"after": "key_0"}):
        with pytest.raises(NotThere):
            registry.list_keys(**unknown)
    fields = {"organisation": "acme", "project": "acme.web", "key": made[3], "model": "a", "cost": None}
    used = {"replica": "r", "outcome": "answered", "used": Used(1, 0, 1), "is_estimated": False}
    enter(database, [Entry(id=f"{at}", at=at, **fields, **used) for at in (1_795_867_200.0, 1_795_780_800.0)])
    used_on = {each.key.id: each.last_used_on for each in registry.list_keys()}
    assert used_on.pop(made[3]) == "2026-11-28" and set(used_on.values()) == {None}
    registry.revoke_key("me", made[0])
    clock.now += 1
    registry.rotate_key("me", made[1], 0)
    states = {each.key.id: each.key.state(clock.now) for each in registry.list_keys()}
    assert [states[each] for each in made[:3]] == ["revoked", "expired", "usable"]


def test_no_key_itself_is_kept(registry: Registry, database: Database) -> None:
    key, secret = registry.create_key("me", "web", "acme.search")
    rotated, second = registry.rotate_key("me", key.id, 0)
    told = repr(registry.changes()) + repr(registry.audit(None, 100))
    assert secret not in told and second not in told and rotated.id in told


def test_what_is_not_taken_says_why(registry: Registry, clock: Clock) -> None:
    directory = Directory(clock)
    made = {
        name: registry.create_key("me", name, "acme.search", seconds=60 if name == "short" else None)
        for name in ("short", "revoked", "good")
    }
    _, admin = registry.create_key("me", "boss", None, role="admin")
    registry.revoke_key("me", made["revoked"][0].id)
    clock.now += 61
    follow(registry, directory)

    def why(secret: str) -> str:
        with pytest.raises(InvalidApiKey) as caught:
            directory.find(secret.encode())
        assert secret not in caught.value.message
        return caught.value.message

    assert "expired at 1970-01-12 13:47:40 UTC; use a new one" in why(made["short"][1])
    assert "was revoked at 1970-01-12 13:46:40 UTC" in why(made["revoked"][1])
    assert "none of this server's" in why("penstock-something-else")
    assert "is an administrator's" in why(admin)
    assert directory.administrator(admin.encode())[1] == "admin"
    directory.find(made["good"][1].encode())
    registry.close("me", "acme.search")
    follow(registry, directory)
    assert "The project acme.search of this API key is closed" in why(made["good"][1])
    assert directory.tenant("acme.search") is None


def test_a_closed_organisation_takes_nothing(registry: Registry, clock: Clock) -> None:
    directory = Directory(clock)
    _, secret = registry.create_key("me", "web", "acme.search")
    registry.close("me", "acme")
    follow(registry, directory)
    with pytest.raises(InvalidApiKey, match="The organisation acme of this API key is closed"):
        directory.find(secret.encode())
    with pytest.raises(InvalidParameter, match="The organisation acme is closed"):
        registry.create_project("me", "acme.new", Settings())
    with pytest.raises(InvalidParameter, match="The organisation acme is closed"):
        registry.create_key("me", "web", "acme.search")


def test_both_keys_are_taken_while_they_overlap(registry: Registry, clock: Clock) -> None:
    directory = Directory(clock)
    old, first = registry.create_key("me", "web", "acme.search", Settings(tokens_per_minute=5))
    new, second = registry.rotate_key("me", old.id, 3600)
    assert new.settings == old.settings and new.name == old.name
    follow(registry, directory)
    assert directory.find(first.encode()).name == directory.find(second.encode()).name == "acme.search"
    clock.now += 3600
    directory.find(second.encode())
    with pytest.raises(InvalidApiKey, match="expired"):
        directory.find(first.encode())


def test_streams_end_only_where_that_was_asked(registry: Registry) -> None:
    directory = Directory()
    quiet, loud = (registry.create_key("me", name, "acme.search")[0] for name in ("quiet", "loud"))
    follow(registry, directory)
    registry.revoke_key("me", quiet.id)
    registry.revoke_key("me", loud.id, ends_streams=True)
    assert follow(registry, directory) == [loud.id]
    # It can be asked for later.
    registry.revoke_key("me", quiet.id, ends_streams=True)
    assert follow(registry, directory) == [quiet.id]


@pytest.mark.parametrize(
    ("act", "error", "says"),
    [
        (lambda r: r.create_organisation("me", "acme", Settings()), AlreadyThere, "an organisation acme already"),
        (lambda r: r.create_project("me", "acme.search", Settings()), AlreadyThere, "a project acme.search already"),
        (lambda r: r.create_project("me", "else.a", Settings()), NotThere, "no organisation 'else'"),
        (lambda r: r.create_project("me", "acme", Settings()), InvalidParameter, "named ORGANISATION.PROJECT"),
        (lambda r: r.create_project("me", "acme.a.b", Settings()), InvalidParameter, "must have 1 to 31 of"),
        (lambda r: r.create_organisation("me", "a b", Settings()), InvalidParameter, "must have 1 to 31 of"),
        (lambda r: r.create_organisation("me", "a" * 32, Settings()), InvalidParameter, "must have 1 to 31 of"),
        (lambda r: r.create_key("me", "web", "acme.other"), NotThere, "no project 'acme.other'"),
        (lambda r: r.create_key("me", "web", None), InvalidParameter, "project: is needed"),
        (lambda r: r.create_key("me", "a", "acme.search", role="admin"), InvalidParameter, "and by no others"),
        (lambda r: r.create_key("me", "a", None, role="king"), InvalidParameter, "role: is 'king'; there are member"),
        (
            lambda r: r.create_key("me", "w", "acme.search", seconds=0),
            InvalidParameter,
            "expires_in: is 0; a key lasts",
        ),
        (lambda r: r.create_key("me", "w", "acme.search", seconds=1e18), InvalidParameter, "a key lasts more than 0"),
        (lambda r: r.create_key("me", "w", "acme.search", seconds=float("nan")), InvalidParameter, "a key lasts"),
        (lambda r: r.rotate_key("me", "key_0", 5), NotThere, "no key 'key_0'"),
        (lambda r: r.revoke_key("me", "key_0"), NotThere, "no key 'key_0'"),
        (lambda r: r.close("me", "acme.none"), NotThere, "no project 'acme.none'"),
        (lambda r: r.set_organisation("me", "nobody", Settings()), NotThere, "no organisation 'nobody'"),
    ],
)
def test_what_cannot_be_done_changes_nothing(
    registry: Registry, act: Callable[[Registry], object], error: type[RequestError], says: str
) -> None:
    before = registry.changes()
    with pytest.raises(error) as caught:
        act(registry)
    assert says in caught.value.message
    assert registry.changes() == before


def test_a_revoked_key_is_not_made_new(registry: Registry) -> None:
    key, _ = registry.create_key("me", "web", "acme.search")
    registry.revoke_key("me", key.id)
    for act in (lambda: registry.rotate_key("me", key.id, 5), lambda: registry.set_key("me", key.id, Settings())):
        with pytest.raises(InvalidParameter, match="was revoked; make a new one"):
            act()


def test_an_expired_key_is_not_made_new(registry: Registry, clock: Clock) -> None:
    key, _ = registry.create_key("me", "web", "acme.search", seconds=60)
    clock.now += 60
    with pytest.raises(InvalidParameter, match="has expired; make a new one"):
        registry.rotate_key("me", key.id, 5)


def test_every_change_is_recorded(registry: Registry) -> None:
    key, _ = registry.create_key("boss", "web", "acme.search")
    registry.set_key("boss", key.id, Settings(requests_per_minute=3))
    registry.set_project("boss", "acme.search", Settings())
    registry.set_organisation("boss", "acme", Settings())
    registry.rotate_key("boss", key.id, 5)
    registry.revoke_key("boss", key.id)
    registry.close("boss", "acme.search")
    registry.close("boss", "acme")
    registry.note("10.0.0.7", "key.refused", "", {"times": 3})
    found = registry.audit(None, 100)[::-1]
    assert [(entry.actor, entry.action, entry.subject) for entry in found] == [
        ("me", "organisation.create", "acme"),
        ("me", "project.create", "acme.search"),
        ("boss", "key.create", key.id),
        ("boss", "key.set", key.id),
        ("boss", "project.set", "acme.search"),
        ("boss", "organisation.set", "acme"),
        ("boss", "key.rotate", key.id),
        ("boss", "key.revoke", key.id),
        ("boss", "project.close", "acme.search"),
        ("boss", "organisation.close", "acme"),
        ("10.0.0.7", "key.refused", ""),
    ]
    assert msgspec.json.decode(found[3].detail) == {"requests_per_minute": 3}
    page = registry.audit(found[-1].sequence, 2)
    assert [entry.action for entry in page] == ["organisation.close", "project.close"]


def test_changes_of_many_at_a_time_are_all_learned(registry: Registry) -> None:
    """One who looks while others change something misses none of it, in whatever order they are done."""
    directory, done = Directory(), threading.Event()

    def make(number: int) -> None:
        for each in range(10):
            registry.create_key("me", f"k{number}-{each}", "acme.search")

    def look() -> None:
        while not done.is_set():
            follow(registry, directory)

    looking = threading.Thread(target=look)
    makers = [threading.Thread(target=make, args=(number,)) for number in range(3)]
    looking.start()
    for thread in makers:
        thread.start()
    for thread in makers:
        thread.join()
    done.set()
    looking.join()
    follow(registry, directory)
    assert sorted(key.id for key in registry.changes().keys) == sorted(_ids(directory))
    assert len(_ids(directory)) == 30


def _ids(directory: Directory) -> list[str]:
    return [key.id for key in directory._keys.values()]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(["make", "rotate", "revoke", "set", "look", "wait"]), st.integers(0, 7))))
def test_a_directory_that_follows_knows_what_the_database_has(
    registry: Registry, clock: Clock, acts: list[tuple[str, int]]
) -> None:
    """Whatever is done, and whenever it looks, one that has looked takes the keys that a new one takes."""
    follower, secrets, keys = Directory(clock), list[str](), list[ApiKey]()
    for act, number in acts:
        try:
            if act == "make":
                made = registry.create_key("me", "k", "acme.search", seconds=number or None)
            elif act == "rotate" and keys:
                made = registry.rotate_key("me", keys[number % len(keys)].id, number)
            else:
                made = None
                if act == "revoke" and keys:
                    registry.revoke_key("me", keys[number % len(keys)].id, ends_streams=bool(number % 2))
                elif act == "set" and keys:
                    registry.set_key("me", keys[number % len(keys)].id, Settings(requests_per_minute=number + 1))
                elif act == "look":
                    follow(registry, follower)
                elif act == "wait":
                    clock.now += number
        except InvalidParameter:
            continue
        if made is not None:
            keys.append(made[0])
            secrets.append(made[1])
    fresh = Directory(clock)
    follow(registry, fresh)
    follow(registry, follower)
    assert [_found(follower, each) for each in secrets] == [_found(fresh, each) for each in secrets]


def _found(directory: Directory, secret: str) -> object:
    try:
        return directory.find(secret.encode())
    except InvalidApiKey as error:
        return error.message
