"""Files of slots: whole or not there, whatever happens to them, and no more of them than there may be."""

import os
import random
import signal
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidTag

from penstock.runtime import slot_files, slot_names
from penstock.runtime.slot_files import BESIDE_BYTES, SlotFiles
from penstock.runtime.tenant_keys import TenantKeys

SECRET = b"s" * 16
SLOT = random.Random(0).randbytes(300)
NAME = (1, bytes(range(32)))


def name(number: int) -> tuple[int, bytes]:
    return 0, b"t" * 16 + number.to_bytes(16, "little")


@pytest.fixture
def files(tmp_path: Path) -> SlotFiles:
    return SlotFiles(tmp_path / "slots", SECRET, 1 << 20)


def path_of(files: SlotFiles) -> Path:
    (path,) = files._folder.glob("*/??/*")
    return path


def test_what_was_written_is_read_after_a_restart(files: SlotFiles) -> None:
    files.write(files.seal(NAME, SLOT))
    again = SlotFiles(files._folder, SECRET, 1 << 20)
    assert again.names() == [NAME] and again.size == BESIDE_BYTES + len(SLOT)
    assert again.read(NAME, len(SLOT)) == SLOT
    assert path_of(files).stat().st_mode & 0o777 == 0o600
    assert SLOT[:32] not in path_of(files).read_bytes()


def test_each_flipped_byte_is_a_miss(files: SlotFiles) -> None:
    files.write(files.seal(NAME, SLOT))
    path, luck = path_of(files), random.Random(1)
    good = path.read_bytes()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << luck.randrange(8)
        path.write_bytes(bad)
        assert files.read(NAME, len(SLOT)) is None, place
    path.write_bytes(good)
    assert files.read(NAME, len(SLOT)) == SLOT


@pytest.mark.parametrize("length", [0, 1, 59, 60, 72, 73, BESIDE_BYTES, BESIDE_BYTES + len(SLOT) - 1])
def test_a_file_that_was_cut_off_is_a_miss(files: SlotFiles, length: int) -> None:
    files.write(files.seal(NAME, SLOT))
    os.truncate(path_of(files), length)
    assert files.read(NAME, len(SLOT)) is None


def test_a_longer_one_and_one_of_another_size_are_misses(files: SlotFiles) -> None:
    files.write(files.seal(NAME, SLOT))
    assert files.read(NAME, len(SLOT) - 1) is None and files.read(NAME, len(SLOT) + 1) is None
    with path_of(files).open("ab") as file:
        file.write(b"x")
    assert files.read(NAME, len(SLOT)) is None


def test_what_others_wrote_is_a_miss(files: SlotFiles) -> None:
    """Whoever may write to the folder cannot make up a block without the secret, nor pass one off as another."""
    others = SlotFiles(files._folder, b"another secret 16"[:16], 1 << 20)
    others.write(others.seal(NAME, SLOT))
    assert files.read(NAME, len(SLOT)) is None
    files.write(files.seal(NAME, SLOT))
    other = (1, NAME[1][:16] + b"x" * 16)
    target = slot_names.path_of(files._folder, other)
    target.parent.mkdir()
    path_of(files).rename(target)
    assert files.read(other, len(SLOT)) is None and files.read(NAME, len(SLOT)) is None


def test_a_tenants_key_opens_nothing_of_anothers(files: SlotFiles) -> None:
    files.write(files.seal(NAME, SLOT))
    theirs = (1, b"x" * 16 + NAME[1][16:])
    keys = TenantKeys(SECRET)
    content = path_of(files).read_bytes()
    nonce, sealed = content[60:72], content[72:]
    assert keys.cipher(NAME[1][:16]).decrypt(nonce, sealed, content[:60]) == SLOT
    for tag in (theirs[1][:16], bytes(16), SECRET):
        with pytest.raises(InvalidTag):
            keys.cipher(tag).decrypt(nonce, sealed, content[:60])
    # Nor does it become another's where it is moved, and its head says so.
    target = slot_names.path_of(files._folder, theirs)
    target.parent.mkdir(parents=True)
    target.write_bytes(content[:28] + theirs[1] + content[60:])
    assert files.read(theirs, len(SLOT)) is None and files.read(NAME, len(SLOT)) == SLOT


def test_a_flood_leaves_another_tenants_files_also_after_a_restart(tmp_path: Path) -> None:
    size = BESIDE_BYTES + len(SLOT)
    mine = [(0, b"m" * 16 + number.to_bytes(16, "little")) for number in range(4)]
    for start in range(3):
        files = SlotFiles(tmp_path, SECRET, 10 * size)
        assert set(mine) <= set(files.names()) or not start
        for each in mine:
            files.write(files.seal(each, SLOT))
        for number in range(50):
            gone = files.write(files.seal(name(100 * start + number), SLOT))
            assert not set(gone) & set(mine)
        assert len(files.names()) == 10 and set(mine) <= set(files.names())


def test_weights_share_a_full_disk(tmp_path: Path) -> None:
    size = BESIDE_BYTES + len(SLOT)
    files = SlotFiles(tmp_path, SECRET, 12 * size)
    for number in range(40):
        for tag, weight in ((b"a", 1.0), (b"b", 3.0)):
            files.write(files.seal((0, tag * 16 + number.to_bytes(16, "little")), SLOT), weight)
    tags = [key[:1] for _, key in files.names()]
    assert (tags.count(b"a"), tags.count(b"b")) == (3, 9)


def test_the_least_recently_used_make_room(tmp_path: Path) -> None:
    size = BESIDE_BYTES + len(SLOT)
    files = SlotFiles(tmp_path, SECRET, 3 * size)
    for number in range(3):
        assert files.write(files.seal(name(number), SLOT)) == []
    assert files.read(name(0), len(SLOT)) == SLOT
    assert files.write(files.seal(name(3), SLOT)) == [name(1)]
    assert files.read(name(1), len(SLOT)) is None
    assert files.size == 3 * size == sum(path.stat().st_size for path in tmp_path.glob("*/??/*"))


def test_a_slot_that_never_fits_is_told(tmp_path: Path) -> None:
    files = SlotFiles(tmp_path, SECRET, BESIDE_BYTES + len(SLOT) - 1)
    with pytest.raises(OSError, match="free"):
        files.write(files.seal(NAME, SLOT))


def test_a_disk_that_is_nearly_full_is_left_to_others(files: SlotFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write(files.seal(name(0), SLOT))
    monkeypatch.setattr(slot_files, "_LEFT_FREE", 1 << 60)
    with pytest.raises(OSError, match="left to others"):
        files.write(files.seal(name(1), SLOT))
    assert not list(files._folder.glob("*/??/*")), "what is there makes room first"


def test_what_a_killed_process_left_goes_once_it_is_old(files: SlotFiles) -> None:
    files.write(files.seal(NAME, SLOT))
    folder = path_of(files).parent
    old, young = folder / "a.kv.1.1.part", folder / "b.kv.1.1.part"
    for path in (old, young):
        path.write_bytes(SLOT)
    os.utime(old, (1, 1))
    assert SlotFiles(files._folder, SECRET, 1 << 20).names() == [NAME]
    assert young.exists() and not old.exists()


def test_names_that_are_none_of_ours_are_left_alone(files: SlotFiles) -> None:
    folder = files._folder / ("ab" * 16) / "ab"
    folder.mkdir(parents=True)
    for odd in ("notes.txt", "zz-0.kv", "abcd-x.kv"):
        (folder / odd).write_text("mine")
    assert SlotFiles(files._folder, SECRET, 1 << 20).names() == []
    assert len(list(folder.iterdir())) == 3


POINTS = ("open", "head", "contents", "fsync", "rename", "end")


def write_and_die(folder: Path, point: str, number: int) -> None:
    """In a process that is killed at a point of a write: nothing that it holds is flushed, closed or removed."""

    def die(*_: object) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    written = 0

    def write_some(descriptor: int, content: bytes) -> int:
        nonlocal written
        written += 1
        if written > (point == "contents"):
            os_write(descriptor, content[: len(content) // 2])
            die()
        return os_write(descriptor, content)

    os_write, opened = os.write, os.open
    files = SlotFiles(folder, SECRET, 1 << 20)
    if point in ("head", "contents"):
        os.write = write_some
    elif point == "open":
        os.open = lambda *each: die(opened(*each))  # type: ignore[assignment]
    elif point in ("fsync", "rename"):
        setattr(os, point, die)
    files.write(files.seal(name(number), SLOT))
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
    files = SlotFiles(tmp_path, SECRET, 1 << 20)
    there = sorted(files.names())
    assert there == ([name(number) for number in range(kills)] if point == "end" else [])
    for each in [name(number) for number in range(kills)]:
        assert files.read(each, len(SLOT)) == (SLOT if point == "end" else None)
