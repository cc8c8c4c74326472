"""Prompts that one number of ranks computes and another one goes on with."""

import random
from typing import Any

import pytest

from penstock import SamplingParams
from penstock.cache import shelves
from penstock.core.handover import LEASE_SECONDS
from penstock.kernels.cpu.native import OBSTACLE
from support.engine_alone import Engine

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

BLOCKS, OUTPUT = 6, 8


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Engine]:
    """Of each role one process, and two ranks."""
    folder = tmp_path_factory.mktemp("layouts")
    (folder / "secret").write_text("0123456789abcdef" * 4)
    return {
        (role, size): Engine(folder, role, tensor_parallel_size=size, dtype="float32")
        for role in ("prefill", "decode")
        for size in (1, 2)
    }


@pytest.mark.parametrize(("computes", "decodes"), [(2, 2), (2, 1), (1, 2)])
def test_blocks_have_one_form_whatever_the_layout(
    computes: int, decodes: int, engines: dict[tuple[str, int], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks are pulled; outputs are those of one layout to the bit, and near where there are two."""
    monkeypatch.setattr(shelves, "_LEAST_PATIENCE", 600.0)
    monkeypatch.setattr(shelves, "_MOST_SHARE", 1e9)
    luck = random.Random(3 * computes + decodes)
    prefill, decode = engines["prefill", computes], engines["decode", decodes]
    assert prefill.built.form == decode.built.form != ""
    assert (prefill.built.identity == decode.built.identity) == (computes == decodes)
    params: Any = SamplingParams(max_tokens=OUTPUT, temperature=0.0, seed=1, logprobs=2, ignore_eos=True)
    for _ in range(3):
        prompt = [luck.randrange(300, 4096) for _ in range(16 * BLOCKS + 5)]
        request = prefill.submit(prompt, params, keep_whole=LEASE_SECONDS)
        right, logprobs = prefill.until(request, OUTPUT)
        prefill.leave(request)
        before, bytes_before = decode.core.snapshot().shelf("peer").read, decode.read
        request = decode.submit(prompt, params, output=(right[0],), offered_at=prefill.built.offers_at)
        found, near = decode.until(request, OUTPUT)
        assert decode.core.snapshot().shelf("peer").read - before == BLOCKS
        # Those of whole blocks, of which a rank has a part.
        assert decode.read - bytes_before == BLOCKS * engines["decode", 1].core.scheduler.cache.spec.slot_bytes(0)
        assert found == right
        if computes == decodes:
            assert near == logprobs
        for one, other in zip(near, logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert prefill.core.check() is None and decode.core.check() is None
