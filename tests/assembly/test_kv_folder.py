"""Folders of --kv-disk that are none, or another's, are told in a sentence with what would work; copies are whole."""

import os
import tarfile
from pathlib import Path

import pytest

from penstock.assembly import disk
from penstock.assembly.disk import LAYOUT, SECRET, check_folder, parts_in, slots_of
from penstock.assembly.exporting import exported
from penstock.core.errors import ConfigurationError
from penstock.runtime.slot_files import SlotFiles
from penstock.runtime.slot_names import ABOUT, path_of

ABOUT_TEXT = b'{"model": "m", "dtype": "bfloat16", "quantization": "none", "tokens_in_block": 16}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a part of three slots."""
    where = tmp_path / "kv"
    where.mkdir()
    (where / SECRET).write_bytes(bytes(32))
    files = SlotFiles(where / f"{LAYOUT}-abc", 1 << 20, about=ABOUT_TEXT)
    files.names()
    for number in range(3):
        files.put((0, bytes([number]) * 32), bytes([number]) * 100)
    return where


def own_of(folder: Path) -> Path:
    return folder / f"{LAYOUT}-abc"


def newer(folder: Path) -> None:
    (folder / f"{LAYOUT + 1}-def").mkdir()
    (folder / f"{LAYOUT + 1}-def" / ABOUT).write_text('{"something": "else"}')


def test_a_folder_that_is_not_there_and_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not there; `penstock serve MODEL --kv-disk .*` makes it"):
        check_folder(tmp_path / "none")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigurationError, match="is a file; give the folder of --kv-disk"):
        check_folder(tmp_path / "file")


def test_a_folder_of_something_else_and_a_part_of_ours(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"is a part of a folder of --kv-disk; give {folder}"):
        check_folder(own_of(folder))
    (folder.parent / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="is no folder of --kv-disk or --kv-store; give the one"):
        check_folder(folder.parent)


def test_a_folder_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    # Whoever runs tests as root may read everything.
    monkeypatch.setattr(disk.os, "scandir", refused)
    with pytest.raises(ConfigurationError, match="belongs to another user and cannot be read; run this as the user"):
        check_folder(folder)


def test_a_newer_layout_is_told_and_left_alone(folder: Path) -> None:
    newer(folder)
    assert check_folder(folder) == [f"{LAYOUT + 1}-def"]
    assert [part.name for part in parts_in(folder)] == [f"{LAYOUT}-abc"]
    for path in [*own_of(folder).glob("??/*"), own_of(folder) / ABOUT]:
        path.unlink()
    with pytest.raises(ConfigurationError, match=f"newer release of Penstock, in layout {LAYOUT + 1}, .* use that"):
        parts_in(folder)


def slots(folder: Path) -> list[tuple[int, bytes]]:
    return sorted(name for name, _ in slots_of(own_of(folder)))


def test_an_export_has_the_same_files_and_times(folder: Path, tmp_path: Path) -> None:
    kept = path_of(own_of(folder), slots(folder)[0])
    os.utime(kept, (4e9, 4e9))
    target = tmp_path / "copy"
    copied = exported(own_of(folder), slots(folder), target)
    assert (copied.files, copied.size, copied.there, copied.gone) == (3, 300, 0, 0)
    assert parts_in(target) == parts_in(folder) and not (target / SECRET).exists()
    for name, path in slots_of(own_of(folder)):
        copy = path_of(own_of(target), name)
        assert copy.read_bytes() == path.read_bytes() and copy.stat().st_mode & 0o777 == 0o600
        assert copy.stat().st_mtime == path.stat().st_mtime
    assert exported(own_of(folder), slots(folder), target)[:3] == (0, 0, 3)
    assert not list(target.glob("**/*.part"))


def test_a_tar_has_what_a_folder_would_have(folder: Path, tmp_path: Path) -> None:
    tar = tmp_path / "copy.tar"
    exported(own_of(folder), slots(folder)[:2], tar)
    (tmp_path / "out").mkdir()
    with tarfile.open(tar) as file:
        file.extractall(tmp_path / "out", filter="data")
    assert slots(tmp_path / "out") == slots(folder)[:2]
    assert [part.about.model for part in parts_in(tmp_path / "out")] == ["m"]
    assert tar.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigurationError, match="is there already; give another name"):
        exported(own_of(folder), slots(folder), tar)


def test_what_goes_meanwhile_is_left_out(folder: Path, tmp_path: Path) -> None:
    names = slots(folder)
    path_of(own_of(folder), names[1]).unlink()
    copied = exported(own_of(folder), names, tmp_path / "copy")
    assert (copied.files, copied.gone) == (2, 1)


@pytest.mark.parametrize("target", ["copy", "copy.tar"])
def test_an_export_that_fails_leaves_nothing_half(folder: Path, tmp_path: Path, target: str) -> None:
    def broken() -> object:
        yield slots(folder)[0]
        raise OSError(28, "No space left on device")

    with pytest.raises(ConfigurationError, match="cannot be written: No space left on device"):
        exported(own_of(folder), broken(), tmp_path / target)  # type: ignore[arg-type]
    assert not (tmp_path / "copy.tar").exists() and not list(tmp_path.glob("**/*.part"))
    assert target.endswith(".tar") or not (own_of(tmp_path / target) / ABOUT).exists()


def test_a_folder_with_other_files_is_no_target(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="has other files; give an empty folder"):
        exported(own_of(folder), slots(folder), tmp_path / "mine")
