"""Prompts apart from decoding, beside as many replicas that do both: what is told of two simulated runs."""

import msgspec

# What a figure has to fall to, so that it is said to be better.
_BETTER = 0.9


class RoleSide(msgspec.Struct, frozen=True):
    """What users see of a fleet, in milliseconds, and output tokens a second of all replicas."""

    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    output_tokens_per_second: float


class RolesTold(msgspec.Struct, frozen=True):
    """Replicas with roles beside as many without, under the same requests.

    Attributes:
        prefill_replicas, decode_replicas: how many there are of each kind.
        transfer: bytes a second that blocks take to a replica that decodes.
        requests: how many were played, at `rate` a second.
        handed_over: prompts that other replicas computed than decoded them.
        streams: that a replica which decodes has at a time, in the mean.
        computing_us, moving_us: microseconds that a token of a prompt takes to be computed, and to be moved.
        apart, alike: with roles, and without.
        helps: whether gaps between tokens get shorter at p99.
        advice: what roles change, and why they do or do not help.
    """

    prefill_replicas: int
    decode_replicas: int
    transfer: float
    requests: int
    rate: float
    handed_over: int
    streams: float
    computing_us: float
    moving_us: float
    apart: RoleSide
    alike: RoleSide
    helps: bool
    advice: str


def helps(apart: RoleSide, alike: RoleSide) -> bool:
    """Whether gaps at p99 are at least a tenth shorter."""
    return apart.itl_p99_ms <= _BETTER * alike.itl_p99_ms


def advice_of(
    apart: RoleSide, alike: RoleSide, handed: float, streams: float, computing_us: float, moving_us: float
) -> str:
    """What roles change; `handed` is the part of the prompts that were handed over."""
    changed = (
        f"the p99 of gaps between tokens is {apart.itl_p99_ms:,.1f} ms with roles and {alike.itl_p99_ms:,.1f} without, "
        f"that of first tokens {apart.ttft_p99_ms:,.0f} and {alike.ttft_p99_ms:,.0f}, and there are "
        f"{apart.output_tokens_per_second:,.0f} and {alike.output_tokens_per_second:,.0f} tokens/s"
    )
    if helps(apart, alike):
        return f"Roles help: {changed}. {handed:.0%} of the prompts were handed over."
    waits = streams * computing_us
    if handed < 0.5:
        why = (
            f"{handed:.0%} of the prompts were handed over: a token of one keeps {streams:,.1f} streams waiting for "
            f"{waits:,.0f} µs in all where it is computed, and moving it takes {moving_us:,.0f}"
        )
        if waits > moving_us:
            why = f"{handed:.0%} of the prompts were handed over: the others were short, or would have waited longer"
    else:
        why = "gaps are as long without prompts beside them"
    return f"Roles do not help: {changed}. {why[0].upper()}{why[1:]}."
