"""Whether prompts apart from outputs would help the streams of a server (docs/disaggregation.md). Pure."""

from collections.abc import Iterator

from penstock.doctor.finding import Evidence, Finding
from penstock.doctor.observation import Observation

# A gateway hands over no prompt with fewer tokens to compute.
_LONG = 256
# Prompts weigh from this share of the steps' time on, where their steps take this many times those without.
_WEIGH = 0.1
_STANDS_OUT = 2.0
_FEW = 20


def role_findings(seen: Observation) -> Iterator[Finding]:
    """Where one gap in a hundred is longer than it should be: whether roles would make it shorter, and why."""
    gaps, settings = seen.latency.itl, seen.settings
    target = (settings.slo or {}).get("itl") or settings.target_itl
    if target is None or gaps.p99 is None or gaps.count < _FEW or gaps.p99 <= target or settings.role == "prefill":
        return
    helps, why, advice = _judged(seen)
    chunk, plain = (0.0 if seconds is None else 1000 * seconds for seconds in (seen.chunk_step, seen.plain_step))
    yield Finding(
        subject="prompts apart from outputs",
        layer="L4a",
        level="note",
        figure="would help" if helps else "would not help",
        meaning=f"One gap in a hundred is longer than {1000 * gaps.p99:,.0f} ms, and {1000 * target:,.0f} are wanted: "
        f"{why}.",
        advice=advice,
        evidence=(
            Evidence(f"p99 {1000 * gaps.p99:,.0f} ms", "latency.itl"),
            Evidence(f"{_computed(seen):,.0f} tokens of a prompt", "prompt_tokens, prefix_hit_tokens, requests"),
            Evidence(f"{chunk:,.0f} ms with prompts, {plain:,.0f} ms without", "steps.chunk_seconds, and steps' times"),
            Evidence(f"{seen.chunks:.0%} of the steps' time", "steps.chunk_seconds"),
        ),
    )


def _computed(seen: Observation) -> float:
    """Tokens of a prompt that are not in the cache, in the mean."""
    return max(0, seen.prompt_tokens - seen.hit_tokens) / max(1, sum(seen.requests.values()))


def _judged(seen: Observation) -> tuple[bool, str, str | None]:
    chunk, plain = seen.chunk_step, seen.plain_step
    if seen.steps.decodes == 0 or chunk is None or plain is None:
        return False, "no prompt was computed beside streams", None
    if seen.chunks < _WEIGH or chunk < _STANDS_OUT * plain:
        return False, f"prompts take {seen.chunks:.0%} of the steps' time, and are not what makes gaps long", None
    if _computed(seen) < _LONG:
        why = f"prompts have {_computed(seen):,.0f} tokens to compute, and are sooner computed than moved"
        return False, why, "A lower --target-itl cuts prompts into shorter steps."
    if seen.settings.role == "decode":
        why = "it decodes for replicas that compute prompts, and yet computes many itself"
        return True, why, "More replicas with --role prefill take more of them."
    return (
        True,
        f"prompts of {_computed(seen):,.0f} tokens are computed beside running streams, which wait for them",
        "Of two replicas or more, some with --role prefill and others with --role decode behind `penstock gateway`: "
        "`penstock plan` with --prefill-replicas and --decode-replicas says what that changes. With one replica, a "
        "lower --target-itl cuts prompts into shorter steps.",
    )
