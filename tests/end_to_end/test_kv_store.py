"""Prefixes in a store that machines share: another server reads them instead of computing, and no bit changes by it."""

import importlib.util
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import LLM, SamplingParams
from penstock.core.errors import ConfigurationError
from penstock.kernels.cpu.native import OBSTACLE
from penstock.runtime import health, tier
from support.kv_stores import KINDS, KVStore, opened
from support.waiting import until

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

SHARED = [random.Random(0).randrange(300, 4096) for _ in range(200)]
PROMPTS = [
    {"prompt_token_ids": SHARED + [random.Random(1 + each).randrange(300, 4096) for _ in range(37)]}
    for each in range(4)
]
PARAMS = SamplingParams(max_tokens=12, temperature=0.7, seed=5, logprobs=2, ignore_eos=True)
# 16 tokens a block, and the last token of a prompt is always computed.
WHOLE = 224
ENGINE: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": 2, "speculative": "off"}
LEFT = sum(len(each["prompt_token_ids"]) - WHOLE for each in PROMPTS)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KVStore]:
    with opened(request.param, tmp_path) as store:
        yield store


@pytest.fixture(scope="module")
def plain() -> list[Any]:
    """What is said without a store."""
    return said(LLM("haiku", **ENGINE))


@pytest.fixture
def server(store: KVStore, tmp_path: Path) -> Callable[..., LLM]:
    """Makes servers that have a store and a secret in common."""
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 4)

    def make(**options: Any) -> LLM:
        return LLM("haiku", **{**ENGINE, "kv_store": store.url, "prefix_secret_file": str(secret), **options})

    return make


def said(llm: LLM, prompts: list[Any] = PROMPTS) -> list[Any]:
    """Tokens and their log probabilities; what is written meanwhile is there then."""
    found = llm.generate(prompts, PARAMS)
    assert llm.flush(600.0)
    return [(each.token_ids, each.logprobs) for each in found]


def computed(llm: LLM) -> int:
    return llm.load.prefill_tokens


def test_another_server_computes_little_and_says_the_same(
    store: KVStore, server: Callable[..., LLM], plain: list[Any]
) -> None:
    first = server()
    assert said(first) == plain and store.values()
    second = server()
    assert said(second) == plain
    assert computed(second) == LEFT < computed(first)
    assert second.load.shelf("shared").read > 0 == second.load.shelf("shared").lost


def test_a_server_that_runs_already_finds_what_another_writes(
    store: KVStore, server: Callable[..., LLM], plain: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier, "_LOOK_SECONDS", 0.01)
    second, first = server(), server()
    assert said(first) == plain
    written = len(store.values())
    tiers = second._core.executor._reporter._tiers  # type: ignore[attr-defined]
    until(lambda: len(tiers._tiers["shared"]._seen) == written)
    assert said(second) == plain and computed(second) == LEFT


def test_a_disk_and_a_store_are_two_shelves(server: Callable[..., LLM], plain: list[Any], tmp_path: Path) -> None:
    """What came from the store is on the disk then, and is read from there."""
    said(server())
    for tokens, shelf in ((LEFT, "shared"), (LEFT, "disk")):
        both = server(kv_disk=str(tmp_path / "disk"))
        assert said(both) == plain and computed(both) == tokens
        assert [each.shelf for each in both.load.shelves if each.read] == [shelf]


def test_what_is_spoiled_or_anothers_is_computed(store: KVStore, server: Callable[..., LLM], plain: list[Any]) -> None:
    """A store that lies: values with a flipped bit, those of other names, none at all."""
    said(server())
    values, luck = store.values(), random.Random(3)
    names = sorted(values)
    for number, name in enumerate(luck.sample(names, 3 * len(names) // 4)):
        value = bytearray(values[name])
        value[luck.randrange(len(value))] ^= 0x10
        store.put(name, (bytes(value), values[luck.choice([each for each in names if each != name])], b"")[number % 3])
    again = server()
    assert said(again) == plain and again.load.shelf("shared").lost > 0
    # And what was computed again is written again.
    third = server()
    assert said(third) == plain and computed(third) < computed(again)


def test_servers_with_other_secrets_find_nothing(server: Callable[..., LLM], plain: list[Any], tmp_path: Path) -> None:
    said(server())
    (tmp_path / "other").write_text("another secret of 32 bytes or so")
    other = server(prefix_secret_file=str(tmp_path / "other"))
    assert said(other) == plain and computed(other) > LEFT and other.load.shelf("shared").read == 0


def test_a_store_that_goes_is_told_once_and_comes_back(
    store: KVStore,
    server: Callable[..., LLM],
    plain: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server goes on without it: what it should have had is computed."""
    monkeypatch.setattr(health, "_REST_SECONDS", 0.0)
    # The server that wrote would tell what comes of its own looks.
    monkeypatch.setattr(tier, "_LOOK_SECONDS", 1e6)
    said(server())
    with caplog.at_level(logging.WARNING, "penstock.kv_tiers"):
        llm = server()
        store.kill()
        # Twice, of which the second has nothing of the store any more.
        assert said(llm) == plain and said(llm, list(reversed(PROMPTS))) == list(reversed(plain))
        load = llm.load.shelf("shared")
        assert load.lost > 0 and load.read == 0 and load.dropped > 0
        store.start()
        until(lambda: said(llm, fresh()) and store.values())
    told = [record.getMessage().removeprefix(f"--kv-store {store.url} ") for record in caplog.records]
    for cannot in ("read", "written to"):
        assert sum(each.startswith(f"cannot be {cannot} (") for each in told) == 1, told
        assert told.count(f"can be {cannot} again.") <= 1


def fresh() -> list[Any]:
    """A prompt that was never there."""
    return [{"prompt_token_ids": [random.randrange(300, 4096) for _ in range(40)]}]


@pytest.mark.parametrize("kind", ["valkey", "s3", "mooncake"])
def test_a_store_that_never_answers_is_not_waited_for(kind: str, tmp_path: Path, plain: list[Any]) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef" * 4)
    with opened(kind, tmp_path) as store:
        options = {**ENGINE, "kv_store": store.url, "prefix_secret_file": str(tmp_path / "secret")}
        said(LLM("haiku", **options))
        llm = LLM("haiku", **options)
        store.stop()  # type: ignore[attr-defined]
        found = llm.generate(PROMPTS, PARAMS)
        assert [(each.token_ids, each.logprobs) for each in found] == plain
        assert llm.load.shelf("shared").read == 0 and computed(llm) > LEFT


def test_servers_that_lend_memory_go_on_when_mooncake_has_lost_its_master(
    tmp_path: Path, plain: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new master gives memory that has been written already to others: what is read is right or a miss."""
    monkeypatch.setattr(health, "_REST_SECONDS", 0.0)
    (tmp_path / "secret").write_text("0123456789abcdef" * 4)
    with opened("mooncake", tmp_path) as store:
        options = {**ENGINE, "kv_store": f"{store.url}&segment=64MiB", "prefix_secret_file": str(tmp_path / "secret")}
        first, second = LLM("haiku", **options), LLM("haiku", **options)
        assert said(first) == plain
        store.kill_master()  # type: ignore[attr-defined]
        assert said(second) == plain
        store.start()
        until(lambda: said(first, fresh()) and store.values())
        third = LLM("haiku", **options)
        assert said(third) == plain
        for llm in (first, second, third):
            assert said(llm) == plain


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kv_store": "file:///nowhere/at/all"}, "No such file or directory"),
        ({"kv_store": "file:///tmp", "prefix_secret_file": None}, "needs the secret that the servers share"),
        ({"kv_store": "ftp://host/x"}, "must be a URL such as"),
        ({"kv_store": "file:///tmp?size=100"}, "one block of this model takes"),
        ({"kv_store": "redis://localhost?no_such=1"}, "cannot be used"),
        ({"kv_store": "file:///tmp", "enable_prefix_caching": False}, "keeps no prefix"),
        ({"kv_store": "mooncake://localhost?segment=900TB"}, "are free; lend it less"),
    ],
)
def test_what_cannot_be_is_told(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef" * 4)
    given = {"max_model_len": 256, "prefix_secret_file": str(tmp_path / "secret"), **options}
    with pytest.raises(ConfigurationError, match=words):
        LLM("haiku", **given)


def test_an_extra_that_is_lacking_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef" * 4)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigurationError, match=r"needs the extra kv-mooncake: pip install 'penstock\[kv-mooncake\]'"):
        LLM("haiku", max_model_len=256, kv_store="mooncake://host", prefix_secret_file=str(tmp_path / "secret"))


def test_a_bucket_that_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef" * 4)
    with opened("s3", tmp_path) as store, pytest.raises(ConfigurationError, match="cannot be used"):
        LLM(
            "haiku",
            max_model_len=256,
            kv_store=store.url.replace("kept", "none"),
            prefix_secret_file=str(tmp_path / "secret"),
        )
