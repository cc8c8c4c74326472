"""The worked numbers of well-known texts, each computed by the package; those that they have wrong, put right.

A row that corrects has the text's figure as `wrong`. The handbook (docs/handbook) tells the same as exercises.
"""

from collections.abc import Iterator
from math import log2
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from penstock.planning.drafts import expected_tokens
from penstock.planning.formats import FORMATS, Format
from penstock.planning.hardware import Device, device_of
from penstock.planning.latency import Deployment, decode_step, least_seconds, prefill_step
from penstock.planning.load import load_on, waiting
from penstock.planning.memory import memory_of
from penstock.planning.money import HOURS_A_MONTH, break_even, per_million
from penstock.planning.prices import ApiPrice
from penstock.planning.priors import TYPICAL
from penstock.planning.reading import shape_of
from penstock.planning.shape import ModelShape

KIPPLY = "kipply, Transformer Inference Arithmetic, 2022"
BOOK = "Austin et al., How to Scale Your Model, 2025"
POPE = "Pope et al., Efficiently Scaling Transformer Inference, 2022"
ANALYSIS = "llm-analysis, examples/fastertransformer"
FLEET = "vllm-sr-sim, study of B200"
LORE = "many texts"


class Number(NamedTuple):
    """A worked number: `computed` by the package, what is right, and what the text has where that is something else."""

    what: str
    source: str
    computed: float
    right: float
    off: float = 0.01
    wrong: float | None = None


def llama(layers: int, hidden: int, inner: int, heads: int, kv_heads: int, vocabulary: int) -> ModelShape:
    return shape_of(
        {
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "vocab_size": vocabulary,
        }
    )


def plain(layers: int, hidden: int) -> ModelShape:
    """Layers of 12 hidden^2 parameters with a head that weighs nothing, as Kipply counts them."""
    fields = {"n_layer": layers, "n_embd": hidden, "n_head": hidden // 128, "vocab_size": 1}
    return shape_of({"model_type": "gpt2", **fields})


SEVEN = llama(32, 4096, 11008, 32, 32, 32_000)
THIRTEEN = llama(40, 5120, 13824, 40, 40, 32_000)
SEVENTY = llama(80, 8192, 28672, 64, 8, 128_256)
MIXTRAL = shape_of(
    {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32_000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
)
FIFTY_TWO, GOPHER, KIPPLY_13B = plain(64, 8192), plain(80, 16384), plain(40, 5120)
H100, V5E = device_of("h100"), device_of("tpu v5e")
# The figures that Kipply and the book take.
A100 = replace(device_of("a100-40gb"), bandwidth=1.5e12)
V4 = replace(device_of("tpu v5p"), memory=32e9, bandwidth=1.23e12, rates={"bf16": 275e12})
# Links at their full rate, and nothing beside what is sent.
IDEAL = replace(TYPICAL, link=1.0, message_seconds=0.0)
HALF_BYTE = Format(4, "bf16", "int4 weights")


def floor(shape: ModelShape, device: Device, devices: int = 1, kept: str = "bfloat16", tokens: float = 1) -> float:
    """Milliseconds that a step takes at least; the head in 16 bits."""
    return least_seconds(Deployment(shape, device, devices, FORMATS[kept]), tokens, tokens) * 1e3


def memory_budgets() -> Iterator[Number]:
    for bits, name, size in ((32, "float32", 28), (16, "bfloat16", 14), (8, "int8", 7), (4, "int4", 3.5)):
        found = SEVEN.parameters * FORMATS[name].bytes / 1e9
        yield Number(f"GB of 7B in {bits} bits; 6.74 billion parameters", LORE, found, size, off=0.05)
    yield Number("GB of a request, Llama-2-7B at 4k", LORE, SEVEN.kept_values(4096) * 2 / 1e9, 2.15)
    yield Number("GB of a request, 13B at 4k", LORE, THIRTEEN.kept_values(4096) * 2 / 1e9, 3.36, wrong=1.0)
    yield Number("MB of 2,000 tokens, 70B", LORE, SEVENTY.kept_values(2000) * 2 / 1e6, 655, wrong=200)
    yield Number("MB of a token, 70B", LORE, SEVENTY.kept_values(1) * 2 / 1e6, 0.328, wrong=2.62)
    yield Number("MB of a token, 70B, cut to two digits", LORE, SEVENTY.kept_values(1) * 2 / 1e6, 0.32, off=0.03)
    yield Number("GB of a request, 70B at 4k", LORE, SEVENTY.kept_values(4096) * 2 / 1e9, 1.3, off=0.04)
    heads = llama(80, 8192, 28672, 64, 64, 128_256)
    yield Number("MB of a token, 70B with all heads", LORE, heads.kept_values(1) * 2 / 1e6, 2.6)
    yield Number("2 x layers x hidden, over KV heads", LORE, heads.kept_values(1) / SEVENTY.kept_values(1), 8, wrong=1)
    slots = int((80e9 - 14e9) // (SEVEN.kept_values(4096) * 2))
    yield Number("slots of 4k beside 14 GB of weights", LORE, slots, 30)
    yield Number(
        "GB of these that requests of 1,000 tokens use", LORE, slots * SEVEN.kept_values(1000) * 2 / 1e9, 16, 0.02
    )
    for context, fit in ((4096, 13), (8192, 6), (16384, 3)):
        most = memory_of(Deployment(THIRTEEN, H100), context).max_concurrency
        yield Number(f"requests of 13B at {context} on 80 GB", "the exercise of 13B at 4k, 8k and 16k", most, fit)
    yield Number("billion parameters of Mixtral, resident", LORE, MIXTRAL.parameters / 1e9, 47)
    yield Number("billion parameters of Mixtral, a token", LORE, MIXTRAL.active_parameters / 1e9, 13, off=0.03)


def rooflines() -> Iterator[Number]:
    yield Number("ms to read 70 GB on an H100", LORE, 70e9 / H100.bandwidth * 1e3, 21, off=0.01)
    for name, least, most in (("h100", 45, 50), ("a100", 27, 30), ("rtx4090", 13, 15)):
        rate = 1e3 / floor(SEVENTY, device_of(name), kept="int8")
        yield Number(f"tokens/s of 70B in int8 on {name}", LORE, rate, (least + most) / 2, off=0.08)
    yield Number("70B in int8 that fit on an RTX 4090", LORE, _seventies("rtx4090"), 0, wrong=1)
    yield Number("tokens/s of 7B in 16 bits on an H100", LORE, 1e3 / floor(SEVEN, H100), 254, wrong=238)
    yield Number("the same, if the embedding were read", LORE, H100.bandwidth / 14e9, 238)
    yield Number("operations a byte of an H100, dense", "data sheets", _ridge(H100), 295, wrong=600)
    yield Number("dense of printed TFLOPS, H100 bf16", "data sheets", H100.rates["bf16"] / 1979e12, 0.5, wrong=1.0)


def _seventies(name: str) -> float:
    return float(memory_of(Deployment(SEVENTY, device_of(name), 1, FORMATS["int8"]), 1).fits)


def _ridge(device: Device) -> float:
    return device.rates["bf16"] / device.bandwidth


def kipply() -> Iterator[Number]:
    yield Number("bytes of a token, 52B", KIPPLY, FIFTY_TWO.kept_values(1) * 2, 2_097_152, off=0)
    yield Number("operations of a token, 52B", KIPPLY, 2.0 * FIFTY_TWO.active_parameters, 103_079_215_104, off=1e-6)
    yield Number("operations a byte", KIPPLY, _ridge(A100), 208)
    yield Number("the same, of an A100 with 40 GB", KIPPLY, _ridge(device_of("a100-40gb")), 201, wrong=208)
    yield Number("the same, of an A100 with 80 GB", KIPPLY, _ridge(device_of("a100")), 153, wrong=208)
    yield Number("ms of 208 tokens, 52B", KIPPLY, floor(FIFTY_TWO, A100, tokens=208), 69)
    yield Number("the same on 4", KIPPLY, floor(FIFTY_TWO, A100, 4, tokens=208), 17, off=0.02)
    weights = Deployment(FIFTY_TWO, A100).weight_bytes
    yield Number("bytes of 52B", KIPPLY, weights, 104e9, off=0.01, wrong=104e12)
    token = FIFTY_TWO.kept_values(1) * 2
    yield Number("tokens in 16 GB, 52B", KIPPLY, 16e9 / token, 7629, off=0.001, wrong=8000)
    yield Number("tokens in 56 GB, 52B", KIPPLY, 56e9 / token, 26_703, off=0.001, wrong=23_000)
    yield Number("ms of a step, 260B on 16", KIPPLY, floor(GOPHER, A100, 16), 22, off=0.03)
    yield Number("the same, 512 tokens", KIPPLY, floor(GOPHER, A100, 16, tokens=512), 53, wrong=62)
    sixteen, four = Deployment(GOPHER, A100, 16), Deployment(FIFTY_TWO, A100, 4)
    # As a ring, (n - 1) / n of what the post rounds up to.
    sent = decode_step(sixteen, IDEAL, 512, 0).messages * 1e3
    yield Number("ms of its messages", KIPPLY, sent * 16 / 15, 18)
    late = replace(IDEAL, message_seconds=2 * 8e-6 / log2(16))
    waited = decode_step(sixteen, late, 1, 0).messages - decode_step(sixteen, IDEAL, 1, 0).messages
    yield Number("ms of 4 messages of 8 us a layer", KIPPLY, waited * 1e3, 2.56, wrong=5.12)
    yield Number("ms of 256 tokens, 52B on 4", KIPPLY, floor(FIFTY_TWO, A100, 4, tokens=256), 21)
    sent = decode_step(four, IDEAL, 256, 0).messages * 1e3
    yield Number("ms of its messages, without rounding up", KIPPLY, sent, 2.68, wrong=4)
    yield Number("ms of a step, 13B", KIPPLY, floor(KIPPLY_13B, A100), 16.8)
    yield Number("the same on 2", KIPPLY, floor(KIPPLY_13B, A100, 2), 8.4)
    yield Number("part of the roofline that 22.0 ms are", KIPPLY, floor(KIPPLY_13B, A100) / 22.0, 0.76)
    yield Number("part of the roofline that 13.5 ms on 2 are", KIPPLY, floor(KIPPLY_13B, A100, 2) / 13.5, 0.62)


def book() -> Iterator[Number]:
    yield Number("KiB of a token, 70B in int8", BOOK, SEVENTY.kept_values(1) / 1024, 160, off=0)
    yield Number("GB of 32k", BOOK, SEVENTY.kept_values(32_768) / 1e9, 5.3, off=0.02)
    chips = {"bfloat16": (16, 8.75, None), "int8": (8, 4.38, None), "int4": (4, 2.19, 2.81)}
    left = {"bfloat16": (116, None), "int8": (58, 68), "int4": (29, 19)}
    held = {"bfloat16": (43, None), "int8": (43, 52), "int4": (43, 67)}
    rate = {"bfloat16": (0.27, None), "int8": (0.54, 0.66), "int4": (1.07, 1.72)}
    # Twice the chips: the book has 161 sequences in bf16 on 32, where 512 - 141 GB hold 138.
    twice = {"bfloat16": (0.43, 0.51), "int8": (0.86, 1.03), "int4": (1.71, 2.06)}
    full = V5E.memory / V5E.bandwidth
    yield Number("ms to read a full TPU v5e", BOOK, full * 1e3, 19, off=0.05)
    for name, (count, least, wrong) in chips.items():
        kept = HALF_BYTE if name == "int4" else FORMATS[name]
        weights = Deployment(SEVENTY, V5E, weights=kept, head=kept).weight_bytes
        yield Number(f"TPU v5e for 70B in {name}", BOOK, weights / V5E.memory, least, wrong=wrong)
        for times, figures in ((1, rate), (2, twice)):
            room = count * times * V5E.memory - weights
            sequences = room / (SEVENTY.kept_values(8192) * kept.bytes)
            if times == 1:
                yield Number(f"GB left beside {name}", BOOK, room / 1e9, left[name][0], 0.02, left[name][1])
                yield Number(f"sequences of 8k beside {name}", BOOK, sequences, held[name][0], 0.02, held[name][1])
            right, wrong = figures[name]
            asked = sequences / (full * 512 * count * times)
            yield Number(f"requests/s a chip, {name}, {times} x {count}", BOOK, asked, right, 0.04, wrong)
    yield Number("critical batch", BOOK, _ridge(V5E), 240, off=0.02)
    yield Number("the same, int8 weights", BOOK, _ridge(V5E) / 2, 120, off=0.02)
    v4 = least_seconds(Deployment(plain(1, 129_099), V4, 32), 1)
    yield Number("ms to read 200B on 32 TPU v4", BOOK, v4 * 1e3, 10, off=0.02)
    inner, outer = 4096, 16384
    slope = 2 * inner * outer / V5E.rates["int8"] - (inner + outer) / V5E.bandwidth
    yield Number("tokens, int8 [16384, 4096]", BOOK, inner * outer / V5E.bandwidth / slope, 263, 0.01, wrong=271)
    yield Number("tokens, weights over PCIe", BOOK, device_of("tpu v6e").rates["bf16"] / 1.5e10, 61_000)
    eight = Deployment(SEVENTY, V5E, 8, FORMATS["int8"], head=FORMATS["int8"])
    yield Number("ms of a prompt of 8k on 8", BOOK, least_seconds(eight, 8192) * 1e3, 356, wrong=8)


def others() -> Iterator[Number]:
    whole = 540e9 / (64 * V4.bandwidth)
    yield Number("ms to read PaLM on 64 TPU v4; 29 were measured", POPE, whole * 1e3, 6.9)
    yield Number("measured over that", POPE, 0.029 / whole, 4.2, off=0.02)
    yield Number("s of 64 steps of 29 ms, beside a short prompt", POPE, 64 * 0.029, 1.9, off=0.03)
    peak = 64 * V4.rates["bf16"]
    # Its table 2: batch x tokens, seconds, and the part of the peak that these are.
    table = ((2048, 0.29, 0.43), (64 * 64, 1.82, 0.14), (512 * 2048, 85.2, 0.76), (512 * 64, 6.0, 0.33))
    for tokens, seconds, part in table:
        yield Number(f"part of the peak, {tokens} tokens", POPE, 2 * 540e9 * tokens / peak / seconds, part, off=0.02)
    # It multiplies by the head at all positions, and computes both halves of the attention.
    reached = replace(IDEAL, half_part=1e-9, layer_seconds=0.0, step_seconds=0.0, row_seconds=0.0, attention=0.7)
    reached = replace(reached, products={"plain": 0.7}, weights={"plain": 0.9}, cache=0.9)
    model = llama(40, 5120, 13653, 40, 40, 50_272)
    one = Deployment(model, device_of("a100-40gb"))
    prompt, token = prefill_step(one, reached, 512).seconds, decode_step(one, reached, 1, 512).seconds
    yield Number("ms of a prompt of 512, 13B on an A100", ANALYSIS, prompt * 1e3, 62.15, off=0.05)
    yield Number("ms of a token", ANALYSIS, token * 1e3, 18.97, off=0.02)
    yield Number("ms of the prompt and 10 tokens", ANALYSIS, (prompt + 10 * token) * 1e3, 251.84, off=0.03)
    two = replace(one, split=2)
    reached = replace(reached, weights={"plain": 0.87}, cache=0.87, message_seconds=8e-6)
    prompt, token = prefill_step(two, reached, 512).seconds, decode_step(two, reached, 1, 512).seconds
    yield Number("ms of a prompt of 512 on 2", ANALYSIS, prompt * 1e3, 32.98, off=0.05)
    yield Number("ms of a token on 2", ANALYSIS, token * 1e3, 10.32, off=0.04)
    yield Number("ms of the prompt and 10 tokens on 2", ANALYSIS, (prompt + 10 * token) * 1e3, 136.15, off=0.04)
    each = SEVENTY.kept_values(1, split=8) * 2
    yield Number("bytes of a token on each of 8 devices", FLEET, each, 40_960, off=0, wrong=55_000)
    yield Number("GB of 1,725 streams of 2k on each", FLEET, 1725 * 2048 * each / 1e9, 144.7)
    yield Number("GB of 28 streams of 128k on each", FLEET, 28 * 131_072 * each / 1e9, 150.3)
    yield Number("streams of 2k in that", FLEET, 144.7e9 / (2048 * each), 1725, wrong=1343)
    held = memory_of(Deployment(SEVENTY, device_of("b200"), 8), 2048).cache_bytes / 1e9
    yield Number("GB for keys and values on each of 8 B200; 144.7 to 150.3 were measured", FLEET, held, 147.5, off=0.05)
    # A prompt's chunk of about 1,000 to 2,000 tokens; two all-reduces over 8 devices.
    for name, tokens, right in (("h100", 800, 0.1), ("l40s", 1700, 3.0)):
        layer = prefill_step(Deployment(SEVENTY, device_of(name), 8), IDEAL, tokens).messages / 80
        yield Number(f"ms of a layer's messages on {name}, {tokens} tokens", LORE, layer * 1e3, right, off=0.05)


def drafts_and_load() -> Iterator[Number]:
    for acceptance in (0.5, 0.7, 0.8, 0.9):
        for depth in (1, 4, 8):
            summed = sum((k + 1) * acceptance**k * (1 - acceptance) for k in range(depth))
            whole = summed + (depth + 1) * acceptance**depth
            found = expected_tokens(acceptance, depth)
            yield Number(f"tokens a step, {acceptance} and {depth}", "Leviathan et al., ICML 2023", found, whole, 1e-9)
    near, nearer = (waiting(1, busy, 1.0, 0.99) for busy in (0.98, 0.99))
    yield Number("waiting at 99% over that at 98%", LORE, nearer / near, 2, off=0.01)
    minute = load_on(2, 32, rate=360 / 60, seconds=8.0).utilisation
    yield Number("utilisation of 360 requests a minute, 8 s each, 64 places", LORE, minute, 0.75, wrong=360 * 8 / 64)
    yield Number(
        "requests in flight, 10,000 users who ask once a minute", LORE, load_on(50, 32, 1e4 / 60, 8).in_flight, 1333
    )


def costs() -> Iterator[Number]:
    hour = 7.80 * 300 * 3600 / 1e6
    yield Number("$ a million at 1,000 tokens/s of a box that has $7.80 at 300", LORE, per_million(hour, 1, 1000), 2.34)
    # A toy that divides 1 TB/s by the weights: one request at a time.
    yield Number("tokens/s of 7B by a toy", LORE, 1e12 / 14e9, 71, wrong=500)
    yield Number("$ a million of 70B by the same", LORE, per_million(8.0, 1, 1e12 / 140e9), 311)
    yield Number("the same with 64 at a time", LORE, per_million(8.0, 1, 64e12 / 140e9), 4.86, wrong=311)
    own = 2 * 2.50 * HOURS_A_MONTH
    even = break_even(own, 0.00292, 5.0).requests_a_month
    yield Number("million requests a month, $3,650 and 0.292 cents", LORE, even / 1e6, 1.25)
    # "Above 100 million tokens a month" is of APIs at $30 a million.
    for dollars, million, wrong in ((30.0, 122, None), (0.70, 5214, 100)):
        even = break_even(own, dollars / 1e6, 1e9).requests_a_month
        yield Number(f"million tokens a month at ${dollars}", LORE, even / 1e6, million, 0.01, wrong)
    api = ApiPrice(input=2.50, output=10.0, cached=0.25)
    part = api.month(1, 1000, 0, 1000) / api.month(1, 1000, 0)
    yield Number("price of cached input", LORE, part, 0.10)
    yield Number("$ an hour of 100,000 GPUs at $3 billion a year", LORE, 3e9 / 1e5 / 8760, 3.42)
    yield Number("$ billion a year of these", LORE, 12 * 3.42 * 1e5 * HOURS_A_MONTH / 1e9, 3)
    yield Number("s for 14 GB over 10 Gb/s", LORE, 14e9 * 8 / 10e9, 11.2)


ROWS = [
    *memory_budgets(),
    *rooflines(),
    *kipply(),
    *book(),
    *others(),
    *drafts_and_load(),
    *costs(),
]


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.source}: {row.what}" for row in ROWS])
def test_worked_number(row: Number) -> None:
    assert row.computed == pytest.approx(row.right, rel=row.off)
    if row.wrong is not None:
        assert row.computed != pytest.approx(row.wrong, rel=max(row.off, 0.01))


@pytest.mark.parametrize("name", ["l4", "l40s", "rtx4090", "b200", "rtxpro6000", "h100", "h200", "mi300x"])
def test_fp8_is_not_only_on_hopper(name: str) -> None:
    device = device_of(name)
    assert device.rate(FORMATS["fp8"]) == pytest.approx(2 * device.rates["bf16"], rel=0.02)


@pytest.mark.parametrize("name", ["a100", "a10", "v100"])
def test_fp8_saves_only_memory_elsewhere(name: str) -> None:
    device = device_of(name)
    assert device.rate(FORMATS["fp8"]) == device.rates["bf16"]
