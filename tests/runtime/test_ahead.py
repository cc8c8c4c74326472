"""Memory of the KV pool that is made ready before it is used."""

import ctypes
import gc
import mmap
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.runtime import ahead
from penstock.runtime.ahead import HUGE_PAGE_BYTES, PAGE_BYTES, PIECE_BYTES, Ahead, populate
from support.waiting import PATIENCE, until

ROW = 64 << 10
PIECE = PIECE_BYTES // ROW
ROWS = 8 * PIECE

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be asked for memory before it is touched")


def untouched(row_bytes: int) -> NDArray[np.uint8]:
    """An array of pages of its own: what numpy gives may have been somebody else's, who touched it."""
    return np.frombuffer(mmap.mmap(-1, ROWS * row_bytes), np.uint8).reshape(ROWS, row_bytes)


@pytest.fixture(autouse=True)
def nothing_is_left(looked_through: None) -> Iterator[None]:
    """A helper's work must not wait for the next test, whose `populate` it would call."""
    before = set(threading.enumerate())
    yield
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def resident(array: NDArray[np.uint8], row: int) -> bool:
    """Whether the memory of a row has been given."""
    size = array.strides[0]
    address = array.ctypes.data + row * size
    start = address + -address % PAGE_BYTES
    pages = (address + size - start) // PAGE_BYTES
    seen = (ctypes.c_ubyte * pages)()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(pages * PAGE_BYTES), seen) == 0
    return all(page & 1 for page in seen)


def wait_for(array: NDArray[np.uint8], row: int) -> None:
    until(lambda: resident(array, row), lambda: f"row {row} is not ready")


@linux
def test_rows_behind_those_in_use_are_ready_and_those_further_behind_are_not() -> None:
    array = untouched(ROW)
    pool = Ahead(array)
    for row in range(0, ROWS, 3):
        pool.reached(row)
        wait_for(array, min(ROWS - 1, row + PIECE // 2 - 1))
        # A piece may touch a huge page more at its end.
        far = row + 1 + PIECE * 3 // 2 + HUGE_PAGE_BYTES // ROW + 1
        assert far >= ROWS or not resident(array, far)
    assert (array == 0).all()


@linux
def test_a_long_prompt_may_take_many_rows_at_once() -> None:
    array = untouched(ROW)
    pool = Ahead(array)
    pool.reached(5 * PIECE)
    wait_for(array, 5 * PIECE + PIECE // 2)
    # What was passed over becomes ready when it is touched.
    assert not resident(array, 2 * PIECE)


@linux
def test_in_idle_time_more_is_ready_once_anything_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    array = untouched(ROW)
    pool = Ahead(array)
    pool.use_idle_time()
    assert pool._helper is None
    monkeypatch.setattr(ahead, "IDLE_BYTES", 4 * PIECE * ROW)
    pool.reached(0)
    pool.use_idle_time()
    wait_for(array, 4 * PIECE - 1)
    assert not resident(array, 6 * PIECE)
    # What is ready already is not asked for again.
    pool.reached(3 * PIECE)
    assert pool._newest is not None and pool._ready == 1 + 4 * PIECE


def test_rows_in_use_stop_what_can_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, going, go_on = [], threading.Event(), threading.Event()

    def stay(array: NDArray[np.uint8], first: int, end: int) -> bool:
        asked.append((first, end))
        going.set()
        return go_on.wait(PATIENCE)

    monkeypatch.setattr(ahead, "populate", stay)
    pool = Ahead(untouched(ROW))
    pool.reached(0)
    pool.use_idle_time()
    assert going.wait(PATIENCE)
    # One is under way, and the others have not begun.
    pool.reached(PIECE)
    assert pool._newest is not None and pool._ready == 1 + 2 * PIECE
    go_on.set()
    assert pool._newest.result(timeout=PATIENCE)
    assert asked == [(1, 1 + PIECE), (1 + PIECE, 1 + 2 * PIECE)]


@linux
def test_what_was_written_stays() -> None:
    array = np.arange(3 * PIECE_BYTES, dtype=np.uint32).view(np.uint8).reshape(-1, ROW)
    before = array.copy()
    assert populate(array, 0, len(array))
    assert (array == before).all()


def test_a_system_that_does_not_know_how_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(array: NDArray[np.uint8], first: int, end: int) -> bool:
        asked.append((first, end))
        return False

    monkeypatch.setattr(ahead, "populate", refuse)
    pool = Ahead(untouched(ROW))
    pool.reached(0)
    assert pool._newest is not None and pool._newest.result(timeout=PATIENCE) is False
    for row in range(ROWS):
        pool.reached(row)
    assert asked == [(1, 1 + PIECE)]


@linux
def test_an_advice_that_the_kernel_does_not_know_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "POPULATE_WRITE", 9999)
    assert not populate(untouched(ROW), 0, 1)


def test_a_small_pool_has_no_thread() -> None:
    pool = Ahead(np.zeros((PIECE, ROW), np.uint8))
    for row in range(PIECE):
        pool.reached(row)
    assert pool._helper is None
