"""`penstock cache …` on a folder that a model has filled."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from penstock.cli.cache import told_of
from penstock.core.events import ShelfTotals
from penstock.kernels.cpu.native import OBSTACLE

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

Run = Callable[..., CompletedProcess[str]]
ENGINE = ("--speculative", "off", "--max-model-len", "512")


def test_memory_is_no_place_that_is_filled_for_later() -> None:
    told = list(told_of([ShelfTotals("memory", 9), ShelfTotals("disk", 3, dropped=2), ShelfTotals("shared", 4)]))
    assert [line.partition(" ")[0] for line in told] == ["3", "2", "4"]
    assert "--kv-disk" in told[0] and "run it again" in told[1] and "--kv-store" in told[2]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    text = {"prompt": "The rain falls on the old roof. " * 10}
    chat = {"messages": [{"role": "user", "content": "Hello. " * 20}]}
    file.write_text(f"{json.dumps(text)}\n{json.dumps(chat)}\n\n")
    return file


def test_what_was_warmed_is_there(penstock_here: Run, prompts: Path, tmp_path: Path) -> None:
    folder = str(tmp_path / "kv")
    first = penstock_here("cache", "warm", "haiku", str(prompts), "--kv-disk", folder, *ENGINE)
    assert first.returncode == 0, first.stderr
    assert "2 prompts: " in first.stdout and " 0 were there" in first.stdout
    again = penstock_here("cache", "warm", "haiku", str(prompts), "--kv-disk", folder, *ENGINE)
    assert again.returncode == 0 and " 0 were there" not in again.stdout
    (part,) = json.loads(penstock_here("cache", "list", folder, "--json").stdout)
    assert part["about"]["model"].endswith("haiku") and part["tokens"] % 16 == 0 and part["tokens"] > 100
    assert part["size"] > part["tokens"] // 16 * 65536
    assert part["name"] in penstock_here("cache", "list", folder).stdout
    done = penstock_here("cache", "clear", folder, "--name", part["name"])
    assert f"{part['tokens']:,} tokens are removed" in done.stdout
    assert [path.name for path in Path(folder).iterdir()] == ["secret"]
    assert "has no prefixes" in penstock_here("cache", "list", folder).stdout


def test_a_folder_that_machines_share_is_warmed_listed_and_cleared(
    penstock_here: Run, prompts: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef" * 4)
    (tmp_path / "share").mkdir()
    url = f"file://{tmp_path / 'share'}?size=1GiB"
    options = ("--kv-store", url, "--prefix-secret-file", str(tmp_path / "secret"), *ENGINE)
    done = penstock_here("cache", "warm", "haiku", str(prompts), *options)
    assert done.returncode == 0 and "blocks are in the store of --kv-store" in done.stdout, done.stderr
    (part,) = json.loads(penstock_here("cache", "list", url, "--json").stdout)
    assert part["about"]["model"].endswith("haiku") and part["tokens"] > 100
    assert f"{part['tokens']:,} tokens are removed" in penstock_here("cache", "clear", url).stdout
    assert not list((tmp_path / "share").iterdir())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "Line 1 of"),
        ("[]", "must be"),
        ('{"prompt": "a", "messages": []}', "must be"),
        ('{"promt": "a"}', "must be"),
        ("", "has no prompts"),
    ],
)
def test_a_line_that_is_none_is_told_before_a_model_is_loaded(
    penstock_here: Run, line: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(line)
    done = penstock_here("cache", "warm", "haiku", str(file), "--kv-disk", str(tmp_path / "kv"))
    assert done.returncode != 0 and words in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "kv").exists()


def test_what_is_no_folder_of_ours_is_told(penstock_here: Run, prompts: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file.kv").write_text("mine")
    for command in ("list", "clear"):
        done = penstock_here("cache", command, str(tmp_path / "mine"))
        assert done.returncode != 0 and "is no folder of --kv-disk" in done.stderr
    done = penstock_here("cache", "warm", "haiku", str(prompts))
    assert done.returncode != 0 and "--kv-disk DIR" in done.stderr
    done = penstock_here("cache", "list", "redis://localhost")
    assert done.returncode != 0 and "looks into folders" in done.stderr
    assert (tmp_path / "mine" / "file.kv").exists()


def test_prefixes_are_kept_whole(penstock_here: Run, prompts: Path, tmp_path: Path) -> None:
    folder = str(tmp_path / "kv")
    done = penstock_here("cache", "warm", "haiku", str(prompts), "--kv-disk", folder, "--kv-policy", "window:64")
    assert done.returncode != 0 and "leave out --kv-policy" in done.stderr


def test_a_part_that_is_not_there_is_told(penstock_here: Run, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(32))
    done = penstock_here("cache", "clear", str(tmp_path), "--name", "1-abc")
    assert done.returncode != 0 and "it has nothing" in done.stderr
