"""`penstock cache explain` and `export`: what is there of prompts, why no more, and copies for another server."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from penstock import LLM, SamplingParams
from penstock.kernels.cpu.native import OBSTACLE

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

Run = Callable[..., CompletedProcess[str]]
ENGINE = ("--speculative", "off", "--max-model-len", "512")
WARMED: list[Any] = [
    {"prompt": "The rain falls on the old roof. " * 20},
    {"messages": [{"role": "user", "content": "Hello. " * 40}]},
]
ASKED = [*WARMED, {"prompt": "Nobody has asked this before. " * 10}]


def prompts_in(file: Path, prompts: list[Any]) -> str:
    file.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return str(file)


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has prompts of a model."""
    folder = tmp_path_factory.mktemp("warmed") / "kv"
    fill("haiku", kv_disk=str(folder))
    return folder


def fill(model: str, **where: str) -> None:
    """Compute prompts, until they are kept."""
    llm = LLM(model, speculative="off", max_model_len=512, **where)
    for prompt in WARMED:
        params = SamplingParams(max_tokens=1, temperature=0.0)
        llm.chat(prompt["messages"], params) if "messages" in prompt else llm.generate(prompt, params)
    assert llm.flush(600.0)


@pytest.fixture
def folder(warmed: Path, tmp_path: Path) -> Path:
    """A copy of it that may be spoiled."""
    shutil.copytree(warmed, tmp_path / "kv")
    return tmp_path / "kv"


@pytest.fixture
def explain(penstock_here: Run, tmp_path: Path) -> Callable[..., CompletedProcess[str]]:
    file = prompts_in(tmp_path / "asked.jsonl", ASKED)
    return lambda folder, *more: penstock_here(
        "cache", "explain", "haiku", file, "--kv-disk", str(folder), *ENGINE, *more
    )


def told(done: CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_each_prompt_is_told_of(explain: Run, folder: Path) -> None:
    first, chat, other = told(explain(folder, "--json"))
    for each in (first, chat):
        assert each["why"] == "short" and each["there"] == (each["tokens"] - 1) // 16 * 16
    assert (other["there"], other["why"]) == (0, "absent")
    shown = explain(folder).stdout
    assert "all whole blocks are there" in shown and "was never written, or has been evicted" in shown
    assert f"{first['there'] + chat['there']:,} of " in shown


def test_a_file_that_is_damaged_and_one_that_is_gone(explain: Run, folder: Path) -> None:
    before = told(explain(folder, "--json"))
    files = sorted(folder.glob("1-*/??/*.kv"))
    found = []
    for path in files:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        after = told(explain(folder, "--json"))
        changed = [(one, other) for one, other in zip(after, before, strict=True) if one != other]
        path.write_bytes(content)
        if len(changed) == 1 and 0 < changed[0][0]["there"] < changed[0][1]["there"] - 16:
            found = changed
            break
    ((damaged, whole),) = found
    assert (damaged["why"], damaged["damaged"]) == ("damaged", 1) and damaged["there"] < whole["there"]
    path.unlink()
    evicted = next(each for each in told(explain(folder, "--json")) if each["line"] == damaged["line"])
    assert (evicted["why"], evicted["there"]) == ("evicted", damaged["there"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--quantization", "int8"), "in another form than --dtype bfloat16 --quantization int8; give the options"),
        (("--kv-cache-dtype", "int8"), "was written with other weights, another --kv-cache-dtype, other kernels"),
    ],
)
def test_another_form_of_the_model(explain: Run, folder: Path, options: tuple[str, ...], words: str) -> None:
    done = explain(folder, *options)
    assert done.returncode != 0 and words in done.stderr and "Traceback" not in done.stderr


def test_another_model(explain: Run, folder: Path) -> None:
    (part,) = folder.glob("1-*")
    about = json.loads((part / "about.json").read_text())
    (part / "about.json").write_text(json.dumps({**about, "model": "/models/other"}))
    part.rename(folder / "1-abc")
    done = explain(folder)
    assert done.returncode != 0 and "has nothing of " in done.stderr and "it has /models/other." in done.stderr


def test_another_secret_and_none(explain: Run, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("0123456789abcdef" * 4)
    done = explain(folder, "--prefix-secret-file", str(other))
    assert done.returncode != 0 and "was written with another secret" in done.stderr
    (folder / "secret").unlink()
    done = explain(folder)
    assert done.returncode != 0 and "has no file secret" in done.stderr and "--prefix-secret-file" in done.stderr
    assert not (folder / "secret").exists(), "it was not made"


def test_a_folder_that_is_not_there_is_not_made(explain: Run, tmp_path: Path, penstock_here: Run) -> None:
    done = explain(tmp_path / "none")
    assert done.returncode != 0 and "is not there" in done.stderr and not (tmp_path / "none").exists()
    file = prompts_in(tmp_path / "prompts.jsonl", ASKED)
    done = penstock_here("cache", "explain", "haiku", file, *ENGINE)
    assert done.returncode != 0 and "needs the folder of the server: --kv-disk DIR" in done.stderr


def test_what_is_exported_is_found_elsewhere(penstock_here: Run, explain: Run, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    done = penstock_here("cache", "export", str(folder), str(target))
    assert done.returncode == 0 and f"are in {target}." in done.stdout and "which is not copied" in done.stdout
    shutil.copy(folder / "secret", target / "secret")
    assert told(explain(target, "--json")) == told(explain(folder, "--json"))
    file = prompts_in(tmp_path / "prompts.jsonl", WARMED[:1])
    warm = penstock_here("cache", "warm", "haiku", file, "--kv-disk", str(target), *ENGINE)
    assert " 0 were there" not in warm.stdout, "a server reads it"


def test_prompts_are_exported_alone(penstock_here: Run, folder: Path, tmp_path: Path) -> None:
    file = prompts_in(tmp_path / "one.jsonl", WARMED[:1])
    asked = ("cache", "explain", "haiku", file, "--kv-disk", str(folder), *ENGINE)
    done = penstock_here(*asked, "--export", str(tmp_path / "one.tar"))
    assert done.returncode == 0 and "files of " in done.stdout
    (tmp_path / "out").mkdir()
    shutil.unpack_archive(tmp_path / "one.tar", tmp_path / "out", filter="data")
    (found,) = told(penstock_here(*asked, "--json"))
    assert len(list((tmp_path / "out").glob("1-*/??/*.kv"))) == found["there"] // 16


def test_of_several_parts_one_is_named(penstock_here: Run, folder: Path, tmp_path: Path) -> None:
    (part,) = folder.glob("1-*")
    shutil.copytree(part, folder / "1-abc")
    done = penstock_here("cache", "export", str(folder), str(tmp_path / "copy"))
    assert done.returncode != 0 and "2 parts; give one with --name" in done.stderr
    done = penstock_here("cache", "export", str(folder), str(tmp_path / "copy"), "--name", "1-abc")
    assert done.returncode == 0 and [each.name for each in (tmp_path / "copy").iterdir()] == ["1-abc"]


def test_a_folder_that_machines_share_is_explained_too(penstock_here: Run, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef" * 4)
    (tmp_path / "share").mkdir()
    url = f"file://{tmp_path / 'share'}?size=1GiB"
    secret = str(tmp_path / "secret")
    fill("haiku", kv_store=url, prefix_secret_file=secret)
    file = prompts_in(tmp_path / "asked.jsonl", ASKED)
    asked = ("cache", "explain", "haiku", file, "--kv-store", url, *ENGINE, "--json")
    found = told(penstock_here(*asked, "--prefix-secret-file", secret))
    assert [each["why"] for each in found] == ["short", "short", "absent"]
    done = penstock_here(*asked)
    assert done.returncode != 0 and "--prefix-secret-file" in done.stderr
