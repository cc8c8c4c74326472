"""Slots on their way to a disk and back, on threads of their own."""

import logging
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.core.plan import Place, Shelved, Transfer, TransferResult
from penstock.runtime import disk_tier
from penstock.runtime.disk_tier import DiskTier
from penstock.runtime.slot_files import SlotFiles
from penstock.runtime.tiers import Tiers

SIZE = 100
KEY = b"k" * 32


class Pool:
    """Blocks of a pool, each a slot, with the number of copies that were made."""

    def __init__(self) -> None:
        self.blocks: dict[int, bytearray] = defaultdict(lambda: bytearray(b"x" * SIZE))
        self.copies = 0

    def slot(self, blocks: Sequence[int]) -> memoryview:
        self.copies += 1
        (block,) = blocks
        return memoryview(self.blocks[block])

    def put_slot(self, blocks: Sequence[int], content: bytes) -> None:
        (block,) = blocks
        self.blocks[block] = bytearray(content)


class Tier(Tiers):
    """Tiers of which the one is of interest."""

    def __init__(self, files: SlotFiles, pool: Pool) -> None:
        changed = threading.Condition()
        super().__init__({"disk": DiskTier("disk", files, pool, [SIZE], changed)}, changed)

    def write(self, transfer: Transfer) -> None:
        self.begin([transfer])

    read = write


def tier_in(folder: Path, most: int = 1 << 20) -> tuple[Tier, Pool]:
    pool = Pool()
    return Tier(SlotFiles(folder, b"s" * 16, most), pool), pool


def out(number: int, key: bytes = KEY) -> Transfer:
    return Transfer(number, 0, Place("pool", (number,)), Place("disk", (), key))


def back(number: int, block: int = 7, key: bytes = KEY) -> Transfer:
    return Transfer(number, 0, Place("disk", (), key), Place("pool", (block,)))


def finish(tier: Tiers, count: int, came: list[int] | None = None) -> tuple[list[TransferResult], list[Shelved]]:
    """Until this number is over; `came` gets the blocks of the pool that have come."""
    reports: list[TransferResult] = []
    news: list[Shelved] = []
    blocks = [] if came is None else came
    while len(reports) < count:
        more, told = tier.finish(blocks.extend, wait=True)
        reports += more
        news += told
    return reports, news


def done(reports: list[TransferResult]) -> dict[int, bool]:
    return {report.id: report.done for report in reports}


def test_out_and_back(tmp_path: Path) -> None:
    tier, pool = tier_in(tmp_path)
    pool.blocks[0] = bytearray(range(SIZE))
    tier.write(out(0))
    assert done(finish(tier, 1)[0]) == {0: True}
    tier.read(back(1))
    came: list[int] = []
    (report,), _ = finish(tier, 1, came)
    assert report.done and report.seconds > 0 and came == [7] and pool.blocks[7] == pool.blocks[0]


def test_what_is_not_there_is_not_done(tmp_path: Path) -> None:
    tier, pool = tier_in(tmp_path)
    tier.read(back(0))
    assert done(finish(tier, 1)[0]) == {0: False} and not pool.blocks


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
        tier.write(out(number, bytes([number]) * 16))
        _, news = finish(tier, 1)
    assert news == [Shelved("disk", 0, bytes(16), there=False)]


def test_what_is_left_puts_nothing_into_the_pool(tmp_path: Path) -> None:
    """The plan has failed, and the pool's block may be another sequence's."""
    tier, pool = tier_in(tmp_path)
    tier.write(out(0))
    finish(tier, 1)
    tier.read(back(1))
    tier.leave([back(1)])
    tier.read(back(2, block=8))
    assert done(finish(tier, 1)[0]) == {2: True} and set(pool.blocks) == {0, 8}


def test_a_disk_that_fails_is_told_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tier, _ = tier_in(tmp_path / "slots")
    monkeypatch.setattr(disk_tier, "_REST_SECONDS", 0.0)
    moved = tmp_path / "elsewhere"
    (tmp_path / "slots").rename(moved)
    (tmp_path / "slots").write_text("not a folder")
    with caplog.at_level(logging.WARNING, "penstock.disk"):
        for number in range(3):
            tier.write(out(number))
            assert done(finish(tier, 1)[0]) == {number: False}
        (tmp_path / "slots").unlink()
        moved.rename(tmp_path / "slots")
        tier.write(out(3))
        assert done(finish(tier, 1)[0]) == {3: True}
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
    assert done(finish(tier, 1)[0]) == {1: False} and pool.copies == 1


def test_more_than_the_disk_can_take_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_tier, "_MOST_WAITING", SIZE - 1)
    tier, pool = tier_in(tmp_path)
    tier.write(out(0))
    assert done(finish(tier, 1)[0]) == {0: False} and not pool.copies


def test_all_is_written_before_the_end(tmp_path: Path) -> None:
    tier, _ = tier_in(tmp_path)
    for number in range(20):
        tier.write(out(number, bytes([number]) * 16))
    assert tier.flush(60.0) and len(tier.names()["disk"]) == 20


def test_what_nobody_foresaw_fails_one_transfer_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The threads go on, and so does the tier."""
    tier, _ = tier_in(tmp_path)
    monkeypatch.setattr(disk_tier, "_REST_SECONDS", 0.0)

    def breaks(*_: object) -> None:
        raise ValueError("nobody foresaw this")

    with caplog.at_level(logging.WARNING, "penstock.disk"):
        for method, begin in (("write", out), ("read", back)):
            with monkeypatch.context() as broken:
                broken.setattr(SlotFiles, method, breaks)
                for number in range(3):
                    tier.begin([begin(number)])
                    assert done(finish(tier, 1)[0]) == {number: False}
            tier.begin([begin(3)])
            assert done(finish(tier, 1)[0]) == {3: True}
    told = [record.getMessage() for record in caplog.records if "nobody foresaw this" in record.getMessage()]
    assert len(told) == 2 and all(record.exc_info for record in caplog.records if "nobody" in record.getMessage())
