"""Tenants on a disk: none pushes out what another has in its share, reads it, or keeps what is cleared."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock import LLM, SamplingParams
from penstock.cache.shelves import Shelves
from penstock.cli.main import app
from penstock.core.request import Standing
from penstock.kernels.cpu.native import OBSTACLE

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

# Blocks of a prompt, of the pool, and of the disk.
EACH, POOL, DISK = 5, 8, 20
OPTIONS: dict[str, Any] = {
    "max_model_len": 100,
    "max_num_seqs": 1,
    "speculative": "off",
    "kv_cache_memory": POOL * 65536,
    "kv_disk_size": DISK * (65536 + 128),
}


@pytest.fixture(autouse=True)
def reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast this machine and its disk are decides nothing here."""
    monkeypatch.setattr(Shelves, "pays", lambda self, tokens, slots: True)
    monkeypatch.setattr(Shelves, "patience", lambda self, tokens: 600.0)


def in_turn(folder: Path, requests: list[tuple[str, int]], *, salted: bool = True) -> list[int]:
    """Prompts of tenants on a new engine, one behind the other; of each the tokens that pool and disk had."""
    llm, found = LLM("haiku", kv_disk=str(folder), **OPTIONS), []
    for tenant, which in requests:
        tokens = [random.Random(which).randrange(300, 4096) for _ in range(EACH * 16 + 1)]
        before = llm.load.prefix_hit_tokens
        # As a server does, so that tenants share nothing in the pool either.
        standing = Standing(tenant=tenant, cache_salt=tenant if salted else "")
        llm._run([llm._intake.request(tokens, SamplingParams(max_tokens=1, temperature=0.0), standing)])
        assert llm.flush(600.0)
        found.append(llm.load.prefix_hit_tokens - before)
    return found


def blocks_in(folder: Path) -> list[int]:
    """How many each tenant has."""
    return sorted(Counter(path.name[:32] for path in folder.glob("1-*/??/*.kv")).values())


def test_a_flood_leaves_what_another_tenant_has(tmp_path: Path) -> None:
    flood = [("loud", number) for number in range(10, 22)]
    in_turn(tmp_path, [("modest", 0), ("modest", 1), *flood])
    assert blocks_in(tmp_path) == [2 * EACH, DISK - 2 * EACH]
    # Also after a restart, when the engine knows of tenants what it finds, and while the flood goes on.
    again = in_turn(tmp_path, [*flood, ("modest", 0), ("modest", 1)])
    assert again[-2:] == [EACH * 16] * 2
    alone = in_turn(tmp_path / "alone", flood)
    assert alone == [0] * len(flood) and blocks_in(tmp_path / "alone") == [DISK]


def test_no_tenant_reads_anothers_blocks(tmp_path: Path) -> None:
    assert in_turn(tmp_path, [("one", 0), ("one", 9), ("one", 0)])[-1] == EACH * 16
    # Nor with one salt, where those that compute beside each other share the pool.
    for salted in (True, False):
        assert in_turn(tmp_path, [("other", 0)], salted=salted) == [0]


def test_a_tenant_is_cleared(tmp_path: Path) -> None:
    in_turn(tmp_path, [("one", 0), ("other", 1)])

    def cleared(*more: str) -> str:
        done = CliRunner().invoke(app, ["cache", "clear", str(tmp_path), *more])
        return str(done.exception) if done.exception else done.stdout

    assert "0.0 MiB of 0 tokens" in cleared("--tenant", "nobody")
    assert f"{EACH * 16} tokens are removed" in cleared("--tenant", "one")
    assert blocks_in(tmp_path) == [EACH]
    assert in_turn(tmp_path, [("other", 1), ("one", 0)]) == [EACH * 16, 0]
    assert "with --tenant only" in cleared("--prefix-secret-file", "secret")


def test_a_tenant_is_cleared_with_the_secret_that_servers_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, secret = tmp_path / "kv", tmp_path / "secret"
    secret.write_text("s" * 32)
    monkeypatch.setenv("PENSTOCK_PREFIX_SECRET", "s" * 32)
    in_turn(folder, [("one", 0), ("other", 1)])
    monkeypatch.delenv("PENSTOCK_PREFIX_SECRET")
    asked = ["cache", "clear", str(folder), "--tenant", "one"]
    assert "give it with --prefix-secret-file" in str(CliRunner().invoke(app, asked).exception)
    done = CliRunner().invoke(app, [*asked, "--prefix-secret-file", str(secret)])
    assert f"{EACH * 16} tokens are removed" in done.stdout and blocks_in(folder) == [EACH]
