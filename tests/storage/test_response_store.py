"""Stored responses: found again, bounded in number, size and age."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import InvalidParameter
from penstock.storage.condition import StorageCondition
from penstock.storage.errors import (
    DatabaseAway,
    PreviousResponseNotFound,
    StorageFull,
    StorageRefused,
    StorageUnavailable,
)
from penstock.storage.responses import ResponseQuota, ResponseStore
from support.stored_responses import response_store
from support.waiting import reached

Clock = list[float]


def run(
    path: Path,
    test: Callable[[ResponseStore], Coroutine[Any, Any, None]],
    limits: ResponseQuota | None = None,
    now: float = 0.0,
) -> None:
    """Run a test with a store in `path`, at a time of its own."""

    async def main() -> None:
        with response_store(path / "responses.sqlite", limits, lambda: now) as store:
            await test(store)

    asyncio.run(main())


def keep(store: ResponseStore, response_id: str, previous: str | None = None, text: str = "x", owner: str = "") -> None:
    output = [{"type": "message", "id": f"out of {response_id}", "text": text}]
    store.keep(
        {"id": response_id, "previous_response_id": previous, "output": output},
        [{"type": "message", "id": f"into {response_id}"}],
        owner,
    )


async def ids(store: ResponseStore, response_id: str) -> list[str]:
    turns = await store.conversation(response_id, "")
    return [item["id"] for turn in turns for item in turn.items()]


async def has(store: ResponseStore, response_id: str) -> bool:
    return await store.get(response_id, "") is not None


def test_what_was_kept_is_found_and_can_be_deleted(tmp_path: Path) -> None:
    async def test(store: ResponseStore) -> None:
        keep(store, "a")
        assert await has(store, "a") and not await has(store, "b")
        assert await store.delete("a", "") and not await store.delete("a", "")
        assert not await has(store, "a")

    run(tmp_path, test)


def test_it_outlives_the_server(tmp_path: Path) -> None:
    async def first(store: ResponseStore) -> None:
        keep(store, "a")
        assert await has(store, "a")

    async def second(store: ResponseStore) -> None:
        assert await ids(store, "a") == ["into a", "out of a"]

    run(tmp_path, first)
    run(tmp_path, second)


async def places(store: ResponseStore, *items: str, owner: str = "") -> list[str]:
    """The items' ids, where they are found."""
    found = await store.items(dict.fromkeys(items, "input[0]"), owner)
    return sorted(item["id"] for item in found.values())


def test_items_are_found_by_their_ids(tmp_path: Path) -> None:
    async def test(store: ResponseStore) -> None:
        keep(store, "a")
        keep(store, "b", owner="other")
        assert await places(store, "into a", "out of a") == ["into a", "out of a"]
        assert await places(store, "out of b", owner="other") == ["out of b"]
        for item, owner in (("out of b", ""), ("out of c", ""), ("a", "")):
            with pytest.raises(InvalidParameter, match=r"input\[0\]\.id: no item '.*' is stored here") as caught:
                await places(store, item, owner=owner)
            assert caught.value.param == "input[0].id"
        # An item that came again is there as long as one of the responses that have it is.
        store.keep({"id": "c", "previous_response_id": None, "output": []}, [{"type": "message", "id": "into a"}], "")
        assert await store.delete("a", "")
        assert await places(store, "into a") == ["into a"]
        assert await store.delete("c", "")
        with pytest.raises(InvalidParameter, match="into a"):
            await places(store, "into a")

    run(tmp_path, test)


def test_items_of_responses_that_are_gone_are_gone(tmp_path: Path) -> None:
    async def test(store: ResponseStore) -> None:
        for response_id in ("a", "b", "c"):
            keep(store, response_id)
        with pytest.raises(InvalidParameter, match="out of a"):
            await places(store, "out of a")
        assert await places(store, "out of c") == ["out of c"]

    run(tmp_path, test, ResponseQuota(responses=2))
    with contextlib.closing(sqlite3.connect(tmp_path / "responses.sqlite")) as connection:
        assert connection.execute("SELECT COUNT(*) FROM response_items").fetchone() == (4,)


def test_items_are_read_up_to_a_bound(tmp_path: Path) -> None:
    async def test(store: ResponseStore) -> None:
        keep(store, "a", text="x" * 500)
        keep(store, "b", text="x" * 500)
        assert await places(store, "out of a", "into a") == ["into a", "out of a"]
        with pytest.raises(InvalidParameter, match="more than the 1000 bytes that are read"):
            await places(store, "out of a", "out of b")

    run(tmp_path, test, ResponseQuota(conversation_bytes=1000))


def test_conversations_are_followed_to_their_beginning(tmp_path: Path) -> None:
    async def test(store: ResponseStore) -> None:
        keep(store, "a")
        keep(store, "b", "a")
        keep(store, "c", "b")
        keep(store, "other", "b")
        assert await has(store, "other")
        names = [f"{way} {name}" for name in "abc" for way in ("into", "out of")]
        assert await ids(store, "c") == names
        await store.delete("a", "")
        with pytest.raises(PreviousResponseNotFound, match="'c' goes on from 'a'"):
            await store.conversation("c", "")
        with pytest.raises(PreviousResponseNotFound, match="no response 'z'"):
            await store.conversation("z", "")

    run(tmp_path, test)


def test_their_number_is_bounded_and_the_least_recently_used_goes(tmp_path: Path) -> None:
    limits = ResponseQuota(responses=2)

    async def begin(store: ResponseStore) -> None:
        keep(store, "a")
        keep(store, "b")
        assert await has(store, "b")

    async def use(store: ResponseStore) -> None:
        await store.conversation("a", "")

    async def more(store: ResponseStore) -> None:
        keep(store, "c")
        assert await has(store, "c") and await has(store, "a") and not await has(store, "b")

    run(tmp_path, begin, limits, 1)
    run(tmp_path, use, limits, 2)
    run(tmp_path, more, limits, 3)


def test_their_size_is_bounded(tmp_path: Path) -> None:
    async def test(store: ResponseStore) -> None:
        for name in "abc":
            keep(store, name, text="x" * 400)
        assert [await has(store, name) for name in "abc"] == [False, True, True]
        keep(store, "huge", text="x" * 5000)
        # One that is larger than all may be together is kept alone.
        assert [await has(store, name) for name in ("b", "c", "huge")] == [False, False, True]

    run(tmp_path, test, ResponseQuota(total_bytes=1300))


def test_their_age_is_bounded(tmp_path: Path) -> None:
    async def begin(store: ResponseStore) -> None:
        keep(store, "a")
        assert await has(store, "a")

    async def end(store: ResponseStore) -> None:
        assert not await has(store, "a")
        with pytest.raises(PreviousResponseNotFound):
            await store.conversation("a", "")
        keep(store, "b")
        assert await has(store, "b")
        # The old one has made room.
        assert not await store.delete("a", "")

    run(tmp_path, begin, ResponseQuota(seconds_kept=10), 100)
    run(tmp_path, end, ResponseQuota(seconds_kept=10), 110)


def test_a_conversation_is_read_up_to_a_bound(tmp_path: Path) -> None:
    async def test(store: ResponseStore) -> None:
        keep(store, "a", text="x" * 400)
        keep(store, "b", "a")
        assert await has(store, "b")
        with pytest.raises(InvalidParameter, match="longer than the 400 bytes"):
            await store.conversation("b", "")

    run(tmp_path, test, ResponseQuota(conversation_bytes=400))


def full(*_: object) -> None:
    """As a commit fails on a disk that takes nothing, which is found out in the end."""
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    raise error


def test_what_was_undone_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk: neither what was not deleted in the end, nor what was not stored."""

    async def test(store: ResponseStore) -> None:
        dialect = store._database.database._engine.dialect
        keep(store, "a")
        keep(store, "b")
        assert await has(store, "b")
        with monkeypatch.context() as failing:
            failing.setattr(dialect, "do_commit", full)
            for _ in range(5):
                with pytest.raises(StorageFull):
                    await store.delete("a", "")
            # These two have no room beside each other.
            for name in ("c", "d"):
                keep(store, name, text="x" * 600, owner="other")
            await reached(lambda: store.condition.failures["full"] >= 7)
        await reached(lambda: not store.waiting)
        assert await store.get("d", "other") is not None and await store.get("c", "other") is None
        keep(store, "e")
        assert not await has(store, "a") and await has(store, "b") and await has(store, "e")

    run(tmp_path, test, ResponseQuota(responses=4, tenant_share=0.5, tenant_bytes={"other": 1000}))


@pytest.mark.parametrize(("error", "stored"), [(DatabaseAway("away"), True), (StorageRefused("refused"), False)])
def test_what_can_pass_is_tried_again_whatever_has_passed_meanwhile(
    error: StorageUnavailable, stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database can work again between a failure and the look at why it was."""

    async def test(store: ResponseStore) -> None:
        store.condition = StorageCondition(0.001, 0.001)
        works, failed = store._database.run, asyncio.get_running_loop().create_future()
        failed.set_exception(error)
        attempts = iter([failed])
        monkeypatch.setattr(store._database, "run", lambda work: next(attempts, None) or works(work))
        assert store.condition.failure is None
        keep(store, "a")
        await reached(lambda: not store.waiting)
        assert await has(store, "a") is stored

    run(tmp_path, test)
