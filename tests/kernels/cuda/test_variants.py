"""What a serving engine launches was compiled before: steps that are rehearsed meet every variant of every kernel."""

import msgspec
import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from pathlib import Path
from typing import Any

import torch

if torch.cuda.is_available():
    pytest.skip("launches are seen under Triton's interpreter", allow_module_level=True)

from penstock.assembly import build
from penstock.assembly.backend import on_gpu
from penstock.assembly.prepare import prepare
from penstock.configuration.options import EngineOptions
from penstock.core.config import PoolWish
from penstock.core.devices import MemoryReading
from penstock.core.kv_policy import KVPolicy
from penstock.core.request import Request
from penstock.core.sampling import SamplingParams
from penstock.core.vectors import Pooling
from penstock.engine.core import EngineCore
from support.checkpoints import make
from support.launches import launched


class Roomy:
    """A GPU with room for all."""

    def settle(self) -> MemoryReading:
        return MemoryReading(2**30, 0, 0)

    read = settle


def request(
    number: int,
    prompt: list[int],
    pooling: Pooling | None = None,
    kv_policy: KVPolicy | None = None,
    **params: Any,
) -> Request:
    given = {"max_tokens": 2, "seed": number, "temperature": 0.0} | params
    return Request(
        request_id=number,
        prompt_token_ids=prompt,
        sampling=SamplingParams(**given),
        pooling=pooling,
        kv_policy=kv_policy,
    )


def serve(core: EngineCore, longest: int) -> None:
    """Requests of all kinds, alone and together, some of them by graphs."""
    for number, length in enumerate((1, 2, 3, 5, 16, 17, 18)):
        core.add(request(number, list(range(3, 3 + length))))
        while core.has_work:
            core.step()
    core.use_idle_time()
    core.add(request(10, [30] * (longest - 2), max_tokens=2))
    core.add(request(11, [7, 8, 9], n=2, max_tokens=5))
    core.add(request(12, [7, 8], logit_bias={5: 1.0}))
    core.add(request(13, list(range(50, 68)), prompt_logprobs=2, logprobs=1))
    core.add(request(14, [60, 61, 62], pooling="mean"))
    core.add(request(15, [5, 6], temperature=0.7, min_p=0.1))
    for at, kind in enumerate(core.scheduler.config.kv_policies.kinds):
        bounds = KVPolicy(kind=kind, tokens=112, recent=64)
        # A window goes on behind the longest context.
        prompt = [40 + each % 50 for each in range(longest + 60 if kind == "window" else 150)]
        core.add(request(20 + at, prompt, kv_policy=bounds, max_tokens=4))
    while core.has_work:
        for output in core.step():
            assert output.gained.ending is None or output.gained.ending.error is None


@pytest.mark.parametrize(
    "family, layers, longest, options",
    [
        ("gemma3", 6, 600, {"quantization": "int4", "quantize_head": "int4"}),
        ("qwen2", 2, 1000, {}),
        ("llama", 2, 600, {"quantization": "int8", "deterministic": True, "kv_cache_dtype": "int8"}),
    ],
)
def test_all_that_is_launched_was_rehearsed(
    family: str, layers: int, longest: int, options: dict[str, Any], tmp_path: Path
) -> None:
    asked = EngineOptions.of(
        model=str(make(family, tmp_path, num_hidden_layers=layers, hidden_size=64, head_dim=32, intermediate_size=64)),
        device="cuda",
        max_model_len=longest,
        max_num_seqs=6,
        max_num_batched_tokens=40,
        threads=1,
        **options,
    )
    config = prepare(asked, api_beside=False).config
    wish = PoolWish(None, longest, longest, strict=True)
    config = msgspec.structs.replace(config, cache=msgspec.structs.replace(config.cache, wish=wish))
    with launched() as rehearsed:
        core = build.build_engine(config, lambda done, total: None, backend=on_gpu(config, Roomy())).core
    with launched() as met:
        serve(core, longest)
    assert met <= rehearsed
    assert {"attend_kernel", "merge_kernel", "choose_kernel", "weigh_kernel"} <= {name for name, _ in met}
    far = {dict(kinds).get("FAR") for name, kinds in met if name == "rotate_and_store_kernel"}
    assert far == ({"False", "True"} if "window" in config.scheduler.kv_policies.kinds else {"False"})
