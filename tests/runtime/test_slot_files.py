"""Files of slots: whole or not there, whatever happens to them, and no more of them than there may be."""

import os
import random
import signal
from pathlib import Path

import pytest

from penstock.runtime import slot_files
from penstock.runtime.slot_files import SlotFiles

VALUE = random.Random(0).randbytes(300)
NAME = (1, bytes(range(32)))


def name(number: int) -> tuple[int, bytes]:
    return 0, b"t" * 16 + number.to_bytes(16, "little")


@pytest.fixture
def files(tmp_path: Path) -> SlotFiles:
    return SlotFiles(tmp_path / "slots", 1 << 20)


def path_of(files: SlotFiles) -> Path:
    (path,) = files._folder.glob("??/*")
    return path


def test_what_was_written_is_read_after_a_restart(files: SlotFiles) -> None:
    files.put(NAME, VALUE)
    again = SlotFiles(files._folder, 1 << 20)
    assert again.names() == [NAME] and again.size == len(VALUE)
    assert again.get(NAME, len(VALUE)) == VALUE
    assert path_of(files).stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_read_soon_stays_as_it_is(files: SlotFiles) -> None:
    files.put(name(1), b"value")
    files.ahead(name(1))
    files.ahead(name(2))
    assert files.get(name(1), 100) == b"value" and files.get(name(2), 100) is None


def test_what_is_longer_than_it_may_be_is_none(files: SlotFiles) -> None:
    files.put(NAME, VALUE)
    assert files.get(NAME, len(VALUE) - 1) is None and files.get(NAME, len(VALUE) + 1) == VALUE


def test_what_is_not_there_is_none_and_what_cannot_be_read_an_error(files: SlotFiles) -> None:
    assert files.get(NAME, 1) is None
    files.put(NAME, VALUE)
    path = path_of(files)
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError):
        files.get(NAME, 1)


def test_what_others_write_and_remove_counts_from_the_next_look_on(tmp_path: Path) -> None:
    ours, others = (SlotFiles(tmp_path, 3 * len(VALUE), private=False) for _ in range(2))
    for number in range(2):
        ours.put(name(number), VALUE)
    others.put(name(2), VALUE)
    assert sorted(ours.names()) == sorted(map(name, range(3))) and ours.size == 3 * len(VALUE)
    assert ours.put(name(3), VALUE) == [name(0)]
    assert len(others.names()) == 3 and others.get(name(0), len(VALUE)) is None


def test_no_folder_is_made_where_there_is_none_to_make_it_in(tmp_path: Path) -> None:
    files = SlotFiles(tmp_path / "mount" / "slots", 1 << 20)
    for call in (files.names, lambda: files.put(NAME, VALUE)):
        with pytest.raises(FileNotFoundError):
            call()


def test_the_least_recently_used_make_room(tmp_path: Path) -> None:
    size = len(VALUE)
    files = SlotFiles(tmp_path, 3 * size)
    for number in range(3):
        assert files.put(name(number), VALUE) == []
    assert files.get(name(0), len(VALUE)) == VALUE
    assert files.put(name(3), VALUE) == [name(1)]
    assert files.get(name(1), len(VALUE)) is None
    assert files.size == 3 * size == sum(path.stat().st_size for path in tmp_path.glob("??/*"))


def test_a_flood_leaves_another_tenants_files_also_after_a_restart(tmp_path: Path) -> None:
    size = len(VALUE)
    mine = [(0, b"m" * 16 + number.to_bytes(16, "little")) for number in range(4)]
    for start in range(3):
        files = SlotFiles(tmp_path, 10 * size)
        assert set(mine) <= set(files.names()) or not start
        for each in mine:
            files.put(each, VALUE)
        for number in range(50):
            gone = files.put(name(100 * start + number), VALUE)
            assert not set(gone) & set(mine)
        assert len(files.names()) == 10 and set(mine) <= set(files.names())


def test_weights_share_a_full_folder_and_outlast_a_look_at_it(tmp_path: Path) -> None:
    files = SlotFiles(tmp_path, 12 * len(VALUE))
    for number in range(40):
        for tag, weight in ((b"a", 1.0), (b"b", 3.0)):
            files.put((0, tag * 16 + number.to_bytes(16, "little")), VALUE, weight)
            tags = [key[:1] for _, key in files.names()]
    assert (tags.count(b"a"), tags.count(b"b")) == (3, 9)


def test_a_slot_that_never_fits_is_told(tmp_path: Path) -> None:
    files = SlotFiles(tmp_path, len(VALUE) - 1)
    with pytest.raises(OSError, match="free"):
        files.put(NAME, VALUE)


def test_a_disk_that_is_nearly_full_is_left_to_others(files: SlotFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.put(name(0), VALUE)
    monkeypatch.setattr(slot_files, "_LEFT_FREE", 1 << 60)
    with pytest.raises(OSError, match="left to others"):
        files.put(name(1), VALUE)
    assert not list(files._folder.glob("??/*")), "what is there makes room first"


def test_what_a_killed_process_left_goes_once_it_is_old(files: SlotFiles) -> None:
    files.put(NAME, VALUE)
    folder = path_of(files).parent
    old, young = folder / "a.kv.1.1.part", folder / "b.kv.1.1.part"
    for path in (old, young):
        path.write_bytes(VALUE)
    os.utime(old, (1, 1))
    assert SlotFiles(files._folder, 1 << 20).names() == [NAME]
    assert young.exists() and not old.exists()


def test_names_that_are_none_of_ours_are_left_alone(files: SlotFiles) -> None:
    folder = files._folder / "ab"
    folder.mkdir(parents=True)
    for odd in ("notes.txt", "zz-0.kv", "abcd-x.kv"):
        (folder / odd).write_text("mine")
    assert SlotFiles(files._folder, 1 << 20).names() == []
    assert len(list(folder.iterdir())) == 3


POINTS = ("open", "contents", "fsync", "rename", "end")


def write_and_die(folder: Path, point: str, number: int) -> None:
    """In a process that is killed at a point of a write: nothing that it holds is flushed, closed or removed."""

    def die(*_: object) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def write_some(descriptor: int, content: bytes) -> int:
        os_write(descriptor, content[: len(content) // 2])
        return die()

    os_write, opened = os.write, os.open
    files = SlotFiles(folder, 1 << 20)
    if point == "contents":
        os.write = write_some
    elif point == "open":
        os.open = lambda *each: die(opened(*each))  # type: ignore[assignment]
    elif point in ("fsync", "rename"):
        setattr(os, point, die)
    files.put(name(number), VALUE)
    die()


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_leaves_a_whole_slot_or_none(point: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    kills = 167 if pytestconfig.getoption("slow") else 10
    for number in range(kills):
        child = os.fork()
        if not child:
            write_and_die(tmp_path, point, number)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    files = SlotFiles(tmp_path, 1 << 20)
    there = sorted(files.names())
    assert there == ([name(number) for number in range(kills)] if point == "end" else [])
    for each in [name(number) for number in range(kills)]:
        assert files.get(each, len(VALUE)) == (VALUE if point == "end" else None)


class Clock:
    def __init__(self) -> None:
        self.now = 1.7e9

    def __call__(self) -> float:
        return self.now


def files_of(folder: Path, clock: Clock, slots: int = 3) -> SlotFiles:
    files = SlotFiles(folder, slots * len(VALUE), clock=clock)
    files.names()
    return files


def filled(folder: Path, clock: Clock) -> SlotFiles:
    """Three slots, the first one the oldest."""
    files = files_of(folder, clock)
    for number in range(3):
        files.put(name(number), VALUE)
        clock.now += 1.0
    return files


def test_what_is_kept_makes_room_last_and_for_as_long_as_it_is_kept(tmp_path: Path) -> None:
    clock = Clock()
    files = filled(tmp_path, clock)
    assert files.keep(name(0), 100.0) and files.keep(name(1), 10.0)
    assert files.kept() == {name(0): pytest.approx(100.0), name(1): pytest.approx(10.0)}
    assert files.put(name(3), VALUE) == [name(2)]
    clock.now += 20.0
    assert files.put(name(4), VALUE) == [name(3)]
    assert files.put(name(5), VALUE) == [name(1)]
    # Where there is nothing else, what is kept goes too.
    for number, gone in ((6, 4), (7, 5), (8, 6)):
        assert files.put(name(number), VALUE) == [name(gone)]
    assert files.keep(name(7), 50.0) and files.keep(name(8), 60.0)
    assert files.put(name(9), VALUE) == [name(7)]


def test_a_restart_and_other_processes_know_what_is_kept(tmp_path: Path) -> None:
    clock = Clock()
    files = filled(tmp_path, clock)
    other = files_of(tmp_path, clock)
    files.keep(name(0), 100.0)
    assert other.kept() == {} and other.put(name(3), VALUE) == [name(1)]
    assert files_of(tmp_path, clock).kept() == {name(0): pytest.approx(100.0)}
    clock.now += 200.0
    assert files_of(tmp_path, clock).kept() == {}


def test_a_use_or_another_write_never_shortens_it(tmp_path: Path) -> None:
    clock = Clock()
    files = filled(tmp_path, clock)
    files.keep(name(0), 100.0)
    files.keep(name(0), 10.0)
    assert files.get(name(0), len(VALUE)) == VALUE
    files.put(name(0), VALUE)
    assert files_of(tmp_path, clock).kept() == {name(0): pytest.approx(100.0)}


def test_what_is_to_be_kept_makes_no_room_meanwhile(tmp_path: Path) -> None:
    clock = Clock()
    files = filled(tmp_path, clock)
    files.expect(name(0), 100.0)
    assert files.put(name(3), VALUE) == [name(1)]
    assert not files.keep(name(1), 5.0) and not files.keep(name(9), 5.0)


def test_another_look_forgets_nothing_that_is_to_be_kept(tmp_path: Path) -> None:
    clock = Clock()
    files = filled(tmp_path, clock)
    files.expect(name(0), 100.0)
    files.names()
    assert files.kept() == {name(0): pytest.approx(100.0)}
