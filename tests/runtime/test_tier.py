"""Slots on their way to a store and back, on threads of their own."""

import gc
import logging
import random
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from penstock.cache.shelf_room import Name
from penstock.core.plan import Place, ShelfName, Shelved, Transfer, TransferResult
from penstock.runtime import health
from penstock.runtime import tier as tier_module
from penstock.runtime import tiers as tiers_module
from penstock.runtime.device_slots import DeviceSlots
from penstock.runtime.sealing import Sealing
from penstock.runtime.slot_files import SlotFiles
from penstock.runtime.slot_store import SlotStore
from penstock.runtime.tier import Backing
from penstock.runtime.tiers import Tiers
from penstock.stepping.storage import Slots
from support.later import LaterDevice
from support.tiers import SIZE, Fickle, Others, Pool
from support.waiting import PATIENCE, until

KEY = b"t" * 16 + b"k" * 16


class OneTier(Tiers):
    """Tiers of which the one is of interest."""

    def __init__(
        self,
        store: SlotStore,
        pool: Slots,
        *,
        known: Sequence[Name] = (),
        follows: bool = False,
        size: int = SIZE,
    ) -> None:
        keeper = store if isinstance(store, SlotFiles) else None
        backing = Backing("disk", "--kv-disk", store, tuple(known), follows, keeper)
        super().__init__([backing], Sealing(b"s" * 16), pool, [size])

    def write(self, transfer: Transfer) -> None:
        self.begin([transfer])

    read = write


def tier_in(folder: Path, most: int = 1 << 20) -> tuple[OneTier, Pool]:
    pool, files = Pool(), SlotFiles(folder, most)
    return OneTier(files, pool, known=files.names()), pool


def out(number: int, key: bytes = KEY) -> Transfer:
    return Transfer(number, 0, Place("pool", (number,)), Place("disk", (), key))


def back(number: int, block: int = 7, key: bytes = KEY) -> Transfer:
    return Transfer(number, 0, Place("disk", (), key), Place("pool", (block,)))


def finish(tier: Tiers, count: int, came: list[int] | None = None) -> list[TransferResult]:
    """Until this number is over; `came` gets the blocks of the pool that have come."""
    reports: list[TransferResult] = []
    blocks = [] if came is None else came
    while len(reports) < count:
        reports += tier.finish(blocks.extend, wait=True)
    return reports


def no_blocks(blocks: Sequence[int]) -> None:
    """They are of no interest."""


def done(reports: list[TransferResult]) -> dict[int, bool]:
    return {report.id: report.done for report in reports}


def test_out_and_back(tmp_path: Path) -> None:
    tier, pool = tier_in(tmp_path)
    pool.blocks[0] = bytearray(range(SIZE))
    tier.write(out(0))
    assert done(finish(tier, 1)) == {0: True}
    tier.read(back(1))
    came: list[int] = []
    (report,) = finish(tier, 1, came)
    assert report.done and report.seconds > 0 and came == [7] and pool.blocks[7] == pool.blocks[0]


class Slow(Others):
    """A store whose reads wait until they may, and that is told what is read soon."""

    parallel = 1

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Name] = []
        self.read: list[Name] = []
        self.goes_on = threading.Event()

    def ahead(self, name: Name) -> None:
        self.told.append(name)
        if len(self.told) % 2:
            raise OSError("it cannot be opened")

    def get(self, name: Name, most: int) -> bytes | None:
        self.read.append(name)
        self.goes_on.wait()
        return super().get(name, most)


def test_a_store_is_told_once_of_what_is_read_soon() -> None:
    """What comes before the first is read is told beside that, whether telling fails or not."""
    store, pool, keys = Slow(), Pool(), [KEY[:16] + bytes([number]) * 16 for number in range(50)]
    store.values = {(0, key): sealed((0, key)) for key in keys}
    tier = Tiers([Backing("disk", "--kv-disk", store, ahead=store.ahead)], Sealing(b"s" * 16), pool, [SIZE])
    tier.begin([back(number, number, key) for number, key in enumerate(keys)])
    until(lambda: len(store.read) == 1)
    ahead = len(store.told)
    assert ahead <= tier_module._MOST_AHEAD
    store.goes_on.set()
    assert all(done(finish(tier, 50)).values())
    names = [(0, key) for key in keys]
    # One that was read before others came was not told.
    assert store.read == names and store.told == names[-len(store.told) :] and len(store.told) >= 49


def test_what_is_not_there_is_not_done(tmp_path: Path) -> None:
    tier, pool = tier_in(tmp_path)
    tier.read(back(0))
    assert done(finish(tier, 1)) == {0: False} and not pool.blocks


def test_a_copy_is_made_at_once(tmp_path: Path) -> None:
    """The block may have other contents when the file is written."""
    tier, pool = tier_in(tmp_path)
    pool.blocks[0] = bytearray(b"a" * SIZE)
    tier.write(out(0))
    pool.blocks[0][:] = b"b" * SIZE
    finish(tier, 1)
    tier.read(back(1))
    finish(tier, 1)
    assert pool.blocks[7] == b"a" * SIZE


def test_what_made_room_is_told(tmp_path: Path) -> None:
    tier, _ = tier_in(tmp_path, most=SIZE + 100)
    for number in range(2):
        tier.write(out(number, KEY[:16] + bytes([number]) * 16))
        finish(tier, 1)
    assert tier.news() == [Shelved("disk", 0, KEY[:16] + bytes(16), there=False)]


def test_what_is_left_puts_nothing_into_the_pool(tmp_path: Path) -> None:
    """The plan has failed, and the pool's block may be another sequence's."""
    tier, pool = tier_in(tmp_path)
    tier.write(out(0))
    finish(tier, 1)
    tier.read(back(1))
    tier.leave([back(1)])
    tier.read(back(2, block=8))
    assert done(finish(tier, 1)) == {2: True} and set(pool.blocks) == {0, 8}


def test_a_disk_that_fails_is_told_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tier, _ = tier_in(tmp_path / "slots")
    monkeypatch.setattr(health, "_REST_SECONDS", 0.0)
    moved = tmp_path / "elsewhere"
    (tmp_path / "slots").rename(moved)
    (tmp_path / "slots").write_text("not a folder")
    with caplog.at_level(logging.WARNING, "penstock.kv_tiers"):
        for number in range(3):
            tier.write(out(number))
            assert done(finish(tier, 1)) == {number: False}
        (tmp_path / "slots").unlink()
        moved.rename(tmp_path / "slots")
        tier.write(out(3))
        assert done(finish(tier, 1)) == {3: True}
    assert [record.message.split(":")[0].split(" (")[0] for record in caplog.records] == [
        "--kv-disk cannot be written to",
        "--kv-disk can be written to again.",
    ]


def test_a_disk_that_failed_has_a_rest(tmp_path: Path) -> None:
    tier, pool = tier_in(tmp_path / "slots")
    (tmp_path / "slots").rmdir()
    (tmp_path / "slots").write_text("not a folder")
    tier.write(out(0))
    finish(tier, 1)
    tier.write(out(1))
    assert done(finish(tier, 1)) == {1: False} and pool.copies == 1


def test_more_than_the_disk_can_take_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_module, "_MOST_WAITING", SIZE - 1)
    tier, pool = tier_in(tmp_path)
    tier.write(out(0))
    assert done(finish(tier, 1)) == {0: False} and not pool.copies


def test_all_is_written_before_the_end(tmp_path: Path) -> None:
    tier, _ = tier_in(tmp_path)
    for number in range(20):
        tier.write(out(number, KEY[:16] + bytes([number]) * 16))
    assert tier.flush(PATIENCE) and len(SlotFiles(tmp_path, 1 << 20).names()) == 20


def test_all_tiers_are_written_before_the_process_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers_module, "_LAST_SECONDS", PATIENCE)
    kept = [tier_in(tmp_path / str(place))[0] for place in range(2)]
    for number in range(40):
        kept[number % 2].write(out(number, KEY[:16] + bytes([number]) * 16))
    tiers_module._flush_all()
    assert [len(SlotFiles(tmp_path / str(place), 1 << 20).names()) for place in range(2)] == [20, 20]


def test_what_waits_is_written_when_nothing_uses_the_tiers_any_more_and_the_pool_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers_module, "_LAST_SECONDS", PATIENCE)
    tier, pool = tier_in(tmp_path)
    others = OneTier(Others(), Pool(), follows=True)
    for number in range(20):
        tier.write(out(number, KEY[:16] + bytes([number]) * 16))
    free = [weakref.ref(each) for each in (pool, others._pool)]
    del tier, pool, others
    gc.collect()
    until(lambda: all(each() is None for each in free))
    assert len(SlotFiles(tmp_path, 1 << 20).names()) == 20


def test_what_nobody_foresaw_fails_one_transfer_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The threads go on, and so does the tier."""
    tier, _ = tier_in(tmp_path)
    monkeypatch.setattr(health, "_REST_SECONDS", 0.0)

    def breaks(*_: object) -> None:
        raise ValueError("nobody foresaw this")

    with caplog.at_level(logging.WARNING, "penstock.kv_tiers"):
        for method, begin in (("put", out), ("get", back)):
            with monkeypatch.context() as broken:
                broken.setattr(SlotFiles, method, breaks)
                for number in range(3):
                    tier.begin([begin(number)])
                    assert done(finish(tier, 1)) == {number: False}
            tier.begin([begin(3)])
            assert done(finish(tier, 1)) == {3: True}
    told = [record.getMessage() for record in caplog.records if "nobody foresaw this" in record.getMessage()]
    assert len(told) == 2 and all(record.exc_info for record in caplog.records if "nobody" in record.getMessage())


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing rests, and stores are looked at all the time."""
    monkeypatch.setattr(health, "_REST_SECONDS", 0.0)
    for name in ("_LOOK_SECONDS", "_LOOK_SHARE"):
        monkeypatch.setattr(tier_module, name, 0.001)


def sealed(name: Name) -> bytes:
    into = bytearray(Sealing.beside + SIZE)
    Sealing(b"s" * 16).seal(name, bytes(SIZE), into)
    return bytes(into)


def news(tier: Tiers, count: int) -> set[tuple[bytes, bool]]:
    """Until there are this many."""
    found: list[Shelved] = []
    until(lambda: found.extend(tier.news()) or len(found) >= count)
    assert len(found) == count
    return {(each.key, each.there) for each in found}


def test_what_others_write_and_remove_is_news(at_once: None) -> None:
    store = Others()
    store.values[0, b"a"] = b""
    tier = OneTier(store, Pool(), known=[(0, b"a")], follows=True)
    store.values |= {(0, b"b"): b"", (0, b"c"): b""}
    assert news(tier, 2) == {(b"b", True), (b"c", True)}
    del store.values[0, b"a"]
    assert news(tier, 1) == {(b"a", False)}


def test_what_could_not_be_read_is_news_again_where_it_is_there(at_once: None) -> None:
    """But for what is spoiled: that is there, and of no use before it is written anew."""
    store = Others()
    tier = OneTier(store, Pool(), follows=True)
    store.values |= {(0, KEY): sealed((0, KEY)), (0, b"spoiled" * 2): b"spoiled"}
    assert news(tier, 2) == {(KEY, True), (b"spoiled" * 2, True)}
    store.away = True
    tier.read(back(0))
    assert done(finish(tier, 1)) == {0: False}
    store.away = False
    assert news(tier, 1) == {(KEY, True)}
    tier.read(back(1, key=b"spoiled" * 2))
    tier.read(back(2))
    assert done(finish(tier, 2)) == {1: False, 2: True}
    store.look()
    assert tier.news() == []


def test_one_that_is_away_is_told_once_and_left_in_peace_for_longer_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 100.0
    found = health.Health("--kv-store x", "read", "tokens are computed until it can", (OSError,), lambda: now)
    rests = []
    for _ in range(7):
        found.failed(OSError("away"))
        found.failed(OSError("one more, which was under way"))
        rests.append(found.seconds_left)
        assert found.rests
        now += rests[-1]
        assert not found.rests
    assert rests == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
    found.worked()
    found.failed(OSError("away"))
    assert found.seconds_left == 10.0
    assert [record.getMessage() for record in caplog.records] == [
        "--kv-store x cannot be read (away): tokens are computed until it can.",
        "--kv-store x can be read again.",
        "--kv-store x cannot be read (away): tokens are computed until it can.",
    ]


def test_several_are_waited_for_together() -> None:
    """One that never answers keeps none from the other."""
    store, silent, pool = Others(), Others(), Pool()
    store.values[0, KEY] = sealed((0, KEY))
    waits = threading.Event()
    silent.get = lambda name, most: waits.wait() and None  # type: ignore[assignment, method-assign]
    backings = [
        Backing("disk", "--kv-disk", silent),
        Backing("shared", "--kv-store", store),
    ]
    tiers = Tiers(backings, Sealing(b"s" * 16), pool, [SIZE])
    tiers.begin([back(0), Transfer(1, 0, Place("shared", (), KEY), Place("pool", (8,)))])
    assert done(finish(tiers, 1)) == {1: True} and pool.blocks[8] == bytes(SIZE)
    waits.set()
    assert done(finish(tiers, 1)) == {0: False}


def test_a_slot_is_copied_once_for_all() -> None:
    disk, shared, pool = Others(), Others(), Pool()
    backings = [Backing("disk", "--kv-disk", disk), Backing("shared", "--kv-store", shared)]
    tiers = Tiers(backings, Sealing(b"s" * 16), pool, [SIZE])
    tiers.begin([out(0), Transfer(1, 0, Place("pool", (0,)), Place("shared", (), KEY)), out(2, KEY[:16] + b"j" * 16)])
    # The third is of another slot, in another block.
    assert done(finish(tiers, 3)) == {0: True, 1: True, 2: True} and pool.copies == 2
    assert disk.values[0, KEY] == shared.values[0, KEY] and len(disk.values) == 2


@pytest.mark.parametrize("seed", range(20))
def test_each_transfer_is_over_once_and_what_is_done_is_right(at_once: None, seed: int) -> None:
    """With two stores that fail in all ways, and plans that fail: of these nothing is told, and nothing is written."""
    luck, pool = random.Random(seed), Pool()
    shelves: tuple[ShelfName, ...] = ("disk", "shared")
    stores = [Fickle(seed + number) for number in range(2)]
    backings = [Backing(shelf, f"--{shelf}", store, (), True) for shelf, store in zip(shelves, stores, strict=True)]
    tiers = Tiers(backings, Sealing(b"s" * 16), pool, [SIZE])
    contents = {bytes([each]) * 32: bytes([each]) * SIZE for each in range(10)}
    transfers: dict[int, Transfer] = {}
    left: set[int] = set()
    reports: list[TransferResult] = []
    for step in range(50):
        begun = []
        for number in range(4 * step, 4 * step + luck.randrange(4)):
            key, shelf = luck.choice(list(contents)), luck.choice(shelves)
            place, block = Place(shelf, (), key), Place("pool", (number,))
            writes = luck.random() < 0.5
            if writes:
                pool.blocks[number] = bytearray(contents[key])
            begun.append(Transfer(number, 0, *((block, place) if writes else (place, block))))
        tiers.begin(begun)
        if luck.random() < 0.1:
            tiers.leave(begun)
            left |= {each.id for each in begun}
        transfers |= {each.id: each for each in begun}
        reports += tiers.finish(no_blocks, wait=luck.random() < 0.3)
    until(lambda: reports.extend(tiers.finish(no_blocks, wait=True)) or len(reports) >= len(transfers) - len(left))
    assert tiers.flush(PATIENCE) and not tiers.finish(no_blocks, wait=False)
    assert sorted(report.id for report in reports) == sorted(transfers.keys() - left)
    for report in reports:
        transfer = transfers[report.id]
        if transfer.target.store == "pool":
            expected = contents[transfer.source.key] if report.done else b"x" * SIZE
            assert pool.blocks[report.id] == expected
    # Their threads end with the process.
    for store in stores:
        store.rests = True


def keep(number: int, seconds: float, key: bytes = KEY) -> Transfer:
    place = Place("disk", (), key)
    return Transfer(number, 0, place, place, seconds)


def test_what_is_written_is_kept_once_it_is_there(tmp_path: Path) -> None:
    tier, pool = tier_in(tmp_path)
    pool.blocks[3][:] = b"a" * SIZE
    tier.begin([out(3), keep(4, 5e6), keep(5, 5e6, b"never written...")])
    assert done(finish(tier, 3)) == {3: True, 4: True, 5: False}
    files = SlotFiles(tmp_path, 1 << 20)
    assert files.names() == [(0, KEY)] and 0.0 < files.kept()[0, KEY] <= 5e6


def test_a_plan_that_fails_leaves_no_report_of_what_it_had_kept(tmp_path: Path) -> None:
    tier, _ = tier_in(tmp_path)
    tier.begin([out(3)])
    finish(tier, 1)
    tier.begin([keep(4, 500.0)])
    tier.leave([keep(4, 500.0)])
    assert tier.flush(600.0)
    assert tier.finish(no_blocks, wait=False) == []


BLOCK = 128


def lagging(store: SlotStore, rows: int = 9) -> tuple[OneTier, Tensor, DeviceSlots, LaterDevice]:
    """A tier of a device that does nothing before it is told to, its pool of blocks, and the way out of that."""
    device, pool = LaterDevice(random.Random(0)), torch.zeros((12, BLOCK), dtype=torch.uint8)
    slots = DeviceSlots(pool, 1, rows * BLOCK, 2 * BLOCK, device.queues)
    return OneTier(store, slots, size=BLOCK), pool, slots, device


def test_what_leaves_a_device_is_written_once_it_is_there(tmp_path: Path) -> None:
    """As it was, however its block is used meanwhile; to keep it comes behind that."""
    tier, pool, slots, device = lagging(SlotFiles(tmp_path, 1 << 20))
    pool[3] = 7
    kept = msgspec.structs.replace(out(1), source=out(1).target, keep=60.0)
    tier.begin([Transfer(0, 0, Place("pool", (3,)), Place("disk", (), KEY)), kept])
    device.queues.computing.run(lambda: pool[3].fill_(8))
    assert not tier.finish(no_blocks, wait=True) and not SlotFiles(tmp_path, 1 << 20).names()
    device.finish()
    assert done(finish(tier, 2)) == {0: True, 1: True}
    assert slots._rows.num_free == 9 and pool[3].tolist() == [8] * BLOCK
    tier.begin([back(2, block=5)])
    assert done(finish(tier, 1)) == {2: True}
    device.finish()
    assert pool[5].tolist() == [7] * BLOCK


def test_what_leaves_a_device_with_a_plan_that_fails_is_not_written() -> None:
    store = Others()
    tier, _, slots, device = lagging(store)
    tier.begin([out(0), out(1, KEY[:16] + b"j" * 16)])
    tier.leave([out(0)])
    device.finish()
    assert done(finish(tier, 1)) == {1: True} and [key for _, key in store.values] == [KEY[:16] + b"j" * 16]
    assert tier.flush(PATIENCE) and slots._rows.num_free == 9 and not tier._leaving


def test_what_has_no_room_on_its_way_out_of_a_device_is_not_written() -> None:
    store = Others()
    tier, _, slots, device = lagging(store, rows=2)
    tier.begin([out(number, KEY[:16] + bytes([number]) * 16) for number in range(4)])
    assert done(tier.finish(no_blocks, wait=False)) == {2: False, 3: False}
    device.finish()
    assert done(finish(tier, 2)) == {0: True, 1: True} and len(store.values) == slots._rows.num_free == 2


def test_a_store_that_fails_holds_nothing_of_what_has_left_a_device(at_once: None) -> None:
    store = Others()
    store.away = True
    tier, _, slots, device = lagging(store)
    tier.begin([out(number, KEY[:16] + bytes([number]) * 16) for number in range(9)])
    device.finish()
    assert set(done(finish(tier, 9)).values()) == {False} and slots._rows.num_free == 9
