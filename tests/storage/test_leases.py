"""Which of several servers runs a batch, on a clock that is made up: one at a time, and no line is counted twice."""

import asyncio
import contextlib
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.database.connection import Database
from penstock.storage.batches import Batch, BatchStore, Lease, LineResult
from penstock.storage.condition import StorageCondition
from penstock.storage.errors import BatchNotFound, BatchTaken
from penstock.storage.files import StoredFile, insert_file
from penstock.storage.quotas import StorageQuota
from penstock.storage.transactions import Transactions

SECONDS = 10.0
BATCH = Batch(id="batch_1", endpoint="/v1/completions", input_file_id="file-1", created_at=1, expires_at=2**40)


class Servers:
    """Some that share a database, and its clock."""

    def __init__(self, url: str, runners: dict[str, str]) -> None:
        self.now = 1000.0
        self._database = Database.open(url)
        self._database.upgrade()
        self._transactions = Transactions(self._database, StorageCondition(), "test")
        self.stores = {
            name: BatchStore(self._transactions, StorageQuota(), Lease(name, runner, SECONDS), lambda _: self.now)
            for name, runner in runners.items()
        }

    def make(self) -> None:
        file = StoredFile("file-1", "batch", "in.jsonl", 1, 1, 2**40, "")
        self._transactions.wait(lambda connection: insert_file(connection, file))
        run(next(iter(self.stores.values())).create(BATCH))

    def close(self) -> None:
        self._transactions.close()
        self._database.close()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def test_a_batch_is_held_until_its_time_is_over(database_url: str) -> None:
    with contextlib.closing(Servers(database_url, dict.fromkeys("ab", "model m"))) as servers:
        servers.make()
        a, b = servers.stores.values()
        assert [batch.id for batch in run(b.unfinished())] == ["batch_1"]
        held = run(a.take(BATCH))
        assert run(b.unfinished()) == [] and [each.id for each in run(a.unfinished())] == ["batch_1"]
        servers.now += SECONDS - 0.01
        with pytest.raises(BatchTaken):
            run(b.take(BATCH))
        run(a.take(BATCH))
        servers.now += SECONDS - 0.01
        with pytest.raises(BatchTaken):
            run(b.take(BATCH))
        servers.now += 0.01
        run(b.take(BATCH))
        # What had it can change nothing of it, and does not get it back as long as it is held.
        for work in (
            a.add_results(held, [LineResult(1, True, b"x")]),
            a.change(held, "validating", status="in_progress"),
            a.finish(held, [], "completed"),
            a.take(held),
        ):
            with pytest.raises(BatchTaken):
                run(work)
        # Nor does it take it from the other by leaving it.
        run(a.leave(held))
        with pytest.raises(BatchTaken):
            run(a.take(BATCH))
        run(b.leave(BATCH))
        run(a.take(BATCH))
        assert run(a.finish(BATCH, [], "completed", completed_at=5)).status == "completed"
        with pytest.raises(BatchTaken):
            run(a.take(BATCH))


def test_a_time_that_is_over_is_no_loss_where_nobody_has_taken_the_batch(database_url: str) -> None:
    with contextlib.closing(Servers(database_url, {"a": "model m"})) as servers:
        servers.make()
        store = servers.stores["a"]
        run(store.take(BATCH))
        servers.now += 10 * SECONDS
        run(store.add_results(BATCH, [LineResult(1, True, b"x")]))
        assert run(store.get("batch_1", "")).completed == 1


def test_batches_are_for_servers_of_their_kind(database_url: str) -> None:
    with contextlib.closing(Servers(database_url, {"a": "model m", "b": "model n", "c": "model m"})) as servers:
        servers.make()
        found = {name: [batch.id for batch in run(store.unfinished())] for name, store in servers.stores.items()}
        assert found == {"a": ["batch_1"], "b": [], "c": ["batch_1"]}
        with pytest.raises(BatchTaken):
            run(servers.stores["b"].take(BATCH))
        # What is to be seen of it, all see.
        assert run(servers.stores["b"].get("batch_1", "")).status == "validating"


class Leases(RuleBasedStateMachine):
    """Servers take a batch, stop for a while, and give results, in any order."""

    NAMES = ("a", "b", "c")

    def __init__(self) -> None:
        super().__init__()
        self._folder = contextlib.ExitStack()
        path = Path(self._folder.enter_context(tempfile.TemporaryDirectory())) / "x.sqlite"
        self.servers = self._folder.enter_context(
            contextlib.closing(Servers(f"sqlite:///{path}", dict.fromkeys(self.NAMES, "model m")))
        )
        self.holder, self.until = "", 0.0
        self.kept: dict[int, str] = {}

    def teardown(self) -> None:
        self._folder.close()

    @initialize()
    def make(self) -> None:
        self.servers.make()

    @rule(name=st.sampled_from(NAMES))
    def take(self, name: str) -> None:
        may = self.holder in ("", name) or self.until <= self.servers.now
        if may:
            run(self.servers.stores[name].take(BATCH))
            self.holder, self.until = name, self.servers.now + SECONDS
        else:
            with pytest.raises(BatchTaken):
                run(self.servers.stores[name].take(BATCH))

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        run(self.servers.stores[name].leave(BATCH))
        self.holder = "" if self.holder == name else self.holder

    @rule(name=st.sampled_from(NAMES), lines=st.sets(st.integers(1, 9), min_size=1))
    def add(self, name: str, lines: set[int]) -> None:
        results = [LineResult(number, True, f"{name}{number}".encode()) for number in lines]
        if self.holder != name:
            with pytest.raises(BatchTaken):
                run(self.servers.stores[name].add_results(BATCH, results))
            return
        run(self.servers.stores[name].add_results(BATCH, results))
        self.kept = {result.line: result.output.decode() for result in results} | self.kept

    @rule(seconds=st.sampled_from((0.5, SECONDS / 2, SECONDS)))
    def wait(self, seconds: float) -> None:
        self.servers.now += seconds

    @invariant()
    def what_was_kept_first_counts_once(self) -> None:
        store = self.servers.stores["a"]
        try:
            batch = run(store.get("batch_1", ""))
        except BatchNotFound:
            # It is looked at before it is made, too.
            assert not self.kept
            return
        found = {result.line: result.output.decode() for result in run(store.results("batch_1", True, 0, 100))}
        assert found == self.kept and batch.completed == len(self.kept)


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=10, stateful_step_count=25)
