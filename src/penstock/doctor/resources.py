"""Which resource a server runs out of. Pure rules over an observation.

Each resource has its share, and from where on it counts as busy and as saturated. Limits that a setting moves hide what
is behind them; where the machine itself is used up, moving them changes nothing.
"""

from typing import Literal

import msgspec

from penstock.core.facts import Wait
from penstock.doctor.finding import Evidence, Layer
from penstock.doctor.observation import Observation

State = Literal["free", "busy", "saturated", "unknown"]
Name = Literal[
    "engine",
    "processors",
    "API process",
    "arithmetic",
    "KV memory",
    "rows",
    "pace",
    "token budget",
    "memory reads",
    "bookkeeping",
    "readers",
]

# The share of the window in which requests waited, from which on a limit is a bottleneck.
HELD = 0.05
# Shares from which on a resource is busy, and saturated. First, of the engine's time without a processor.
_CONTENDED = (0.05, 0.15)
# Of one processor's time, which is all that a process of Python has.
_PYTHON = (0.6, 0.9)
# Of the arithmetic that registers allow, the memory reads, and the KV pool; whole models stay below the first.
_ARITHMETIC = (0.35, 0.6)
_MEMORY = (0.5, 0.75)
_KV = (0.8, 0.95)
# The use of a limit from which on it is busy although no request waits for it.
_LIMIT_BUSY = 0.8
# The share of steps' time that is not the model's.
_BOOKKEEPING = (0.3, 0.5)
# The share of requests in flight, and the least of them, that wait for their clients alone.
_READERS = (0.2, 0.5)
_FEW_READERS = 2
# The share of the window in which the engine is in a step; below it, the engine rather waits for requests.
BUSY = 0.5


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a server can run out of.

    Attributes:
        share: how much of it was used; None where that is not known.
        waited: share of the window in which a request waited for it; None where waits for it are not known.
        meaning: what that says.
    """

    name: Name
    layer: Layer
    state: State
    share: float | None
    waited: float | None = None
    meaning: str
    evidence: tuple[Evidence, ...] = ()


class Bottleneck(msgspec.Struct, frozen=True):
    """The resource that bounds the server now; None where nothing does. `rows` of the sheet are about it."""

    resource: Name | None
    layer: Layer | None
    sentence: str
    rows: tuple[int, ...] = ()


def resources(seen: Observation) -> tuple[Resource, ...]:
    """All of them, those first that hide the others."""
    return (
        _processors(seen),
        _api_process(seen),
        _machine(seen, "arithmetic", seen.arithmetic, _ARITHMETIC, "operations", "Products and sums"),
        _kv_memory(seen),
        _rows(seen),
        _pace(seen),
        _budget(seen),
        _machine(seen, "memory reads", seen.memory, _MEMORY, "bytes", "Reads of weights and KV"),
        _bookkeeping(seen),
        _readers(seen),
    )


def in_waiting(share: float) -> str:
    """That requests waited in a share of the time; the caller adds what for."""
    return f"in {share:.0%} of the time requests waited" if share >= 0.005 else "no request waited"


def _state(share: float | None, bounds: tuple[float, float]) -> State:
    if share is None:
        return "unknown"
    return "saturated" if share >= bounds[1] else "busy" if share >= bounds[0] else "free"


def _processors(seen: Observation) -> Resource:
    """Waits of a server that hardly computes slow no request, however large a share of its few steps they are."""
    share, waited = seen.contention, min(1.0, seen.steps.cpu_wait / seen.seconds)
    state = _state(share, _CONTENDED)
    return Resource(
        name="processors",
        layer="L0",
        state="busy" if state == "saturated" and waited < HELD else state,
        share=share,
        waited=waited,
        meaning=f"In {share:.0%} of the steps' time a thread of the engine could have run and had no processor.",
        evidence=(
            Evidence(f"{seen.steps.cpu_wait:.2f} s of {seen.steps.seconds:.2f} s", "steps.cpu_wait, and steps' times"),
        ),
    )


def _api_process(seen: Observation) -> Resource:
    share = seen.api_cpu
    known = share is not None
    return Resource(
        name="API process",
        layer="L5",
        state=_state(share, _PYTHON),
        share=share,
        meaning=f"It reads requests and writes streams with {share:.0%} of the one processor that Python can use."
        if known
        else "How much of a processor it used is not told.",
        evidence=(Evidence(f"{share:.2f} processors", "processes.api.cpu_seconds"),) if known else (),
    )


def _machine(
    seen: Observation,
    name: Literal["arithmetic", "memory reads"],
    share: float | None,
    bounds: tuple[float, float],
    what: Literal["bytes", "operations"],
    words: str,
) -> Resource:
    """What the machine itself allows; it counts as saturated only while the engine is busy."""
    state = _state(share, bounds)
    if state == "saturated" and seen.busy < BUSY:
        state = "busy"
    amount, seconds = getattr(seen.steps, what), seen.steps.seconds
    unknown = "The server does not say what its machine can do." if seen.steps.steps else "Nothing was computed."
    rate = f"{amount / seconds / 1e9:,.1f} billion {what}/s in steps" if seconds else f"no {what}"
    return Resource(
        name=name,
        layer="L0",
        state=state,
        share=share,
        meaning=f"{words} took at least {share:.0%} of what this machine can do while steps ran."
        if share is not None
        else unknown,
        evidence=(Evidence(rate, f"steps.{what}"),) if share is not None else (),
    )


def _kv_memory(seen: Observation) -> Resource:
    waited, preempted = seen.held("blocks"), seen.steps.preemptions
    short = waited >= HELD or preempted > 0 or bool(seen.refused.get("memory_pressure"))
    return Resource(
        name="KV memory",
        layer="L4b",
        state="saturated" if short else _state(min(seen.kv, _KV[1] - 1e-9), _KV),
        share=seen.kv,
        waited=waited,
        meaning=f"Sequences held at most {seen.kv:.0%} of the pool, {preempted} lost their blocks, and "
        f"{in_waiting(waited)} for some.",
        evidence=(
            Evidence(f"{seen.last.kv.used} of {seen.last.kv.total} blocks in use", "now.kv"),
            Evidence(f"{seen.held_seconds('blocks'):.2f} s", "steps.held: blocks"),
            Evidence(str(preempted), "steps.preemptions"),
        ),
    )


def _rows(seen: Observation) -> Resource:
    most = seen.settings.max_num_seqs
    share = seen.batch / most if most else None
    used = f"There were {seen.batch:.1f} sequences in a step"
    return _limit(seen, "rows", "rows", share, f"{used}; {{}} for a place in the batch.", f"max_num_seqs {most}")


def _pace(seen: Observation) -> Resource:
    """The batch is kept small so that tokens come in time; no figure tells how small."""
    used = f"A token came each {1000 * (seen.latency.itl.p50 or 0.0):.3g} ms, in the median"
    meaning = f"{used}; {{}} since more sequences would have made that longer."
    return _limit(seen, "pace", "pace", None, meaning, f"target_itl {seen.settings.target_itl}")


def _budget(seen: Observation) -> Resource:
    used = f"Steps used {seen.budget:.0%} of the tokens that they could have had"
    setting = f"max_num_batched_tokens {seen.settings.max_num_batched_tokens}, target_itl {seen.settings.target_itl}"
    return _limit(seen, "token budget", "budget", seen.budget, f"{used}; {{}} for tokens of a step.", setting)


def _limit(seen: Observation, name: Name, wait: Wait, share: float | None, meaning: str, setting: str) -> Resource:
    """What a setting bounds: who waited for it, and how much of it was used; `meaning` has a place for the first."""
    waited = seen.held(wait)
    used: State = "free" if share is None or share < _LIMIT_BUSY else "busy"
    return Resource(
        name=name,
        layer="L4b",
        state="saturated" if waited >= HELD else used,
        share=share,
        waited=waited,
        meaning=meaning.format(in_waiting(waited)),
        evidence=(
            Evidence(f"{seen.held_seconds(wait):.2f} s", f"steps.held: {wait}"),
            Evidence(setting, "settings"),
        ),
    )


def _bookkeeping(seen: Observation) -> Resource:
    share = seen.bookkeeping
    state = _state(share, _BOOKKEEPING)
    return Resource(
        name="bookkeeping",
        layer="L3",
        state="busy" if state == "saturated" and seen.busy < BUSY else state,
        share=share,
        meaning=f"{share:.0%} of the steps' time went to planning, choosing tokens and sending, the rest to the model.",
        evidence=(
            Evidence(
                f"{seen.steps.schedule:.2f} + {seen.steps.sample:.2f} + {seen.steps.send:.2f} s of "
                f"{seen.steps.seconds:.2f} s",
                "steps.schedule, sample, send",
            ),
        ),
    )


def _readers(seen: Observation) -> Resource:
    count, flight = seen.outside, min(seen.first.in_flight, seen.last.in_flight)
    share = count / flight if flight else 0.0
    return Resource(
        name="readers",
        layer="L6",
        state="free" if count < _FEW_READERS else _state(share, _READERS),
        share=share,
        meaning=f"Of {flight} requests in flight, {count} were neither computed nor waiting at both ends.",
        evidence=(Evidence(f"{count} of {flight}", "now.in_flight, running, waiting"),),
    )


# What is behind each, and the rows of the sheet that are about it.
_NEXT: dict[Name, tuple[str, tuple[int, ...]]] = {
    "engine": ("Nothing is served before it is back; its log says why.", ()),
    "processors": (
        "Others, or the API process where --threads takes every core, take the processors from the engine's threads; "
        "no setting of the scheduler helps.",
        (5,),
    ),
    "API process": ("Streams are written in Python, on one processor; the model is not what takes the time.", (9,)),
    "arithmetic": ("The machine computes as much as it can; more comes of fewer tokens or of another machine.", (3, 9)),
    "KV memory": ("Sequences wait for blocks, or lose them.", (4,)),
    "rows": ("Requests wait for a place in the batch, and the machine could compute more at a time.", (1,)),
    "pace": ("Requests wait so that running streams keep to the time between tokens that is aimed for.", (1,)),
    "token budget": ("Prompts wait since steps are kept short.", (2,)),
    "memory reads": (
        "Each step reads all weights for few sequences; more at a time, or fewer bytes, would help.",
        (6, 1),
    ),
    "readers": ("Their clients have not sent all of them yet, or do not read what is there: look at them.", ()),
    "bookkeeping": ("Steps are so short that Python between them counts.", (9,)),
}


def bottleneck(seen: Observation, found: tuple[Resource, ...]) -> Bottleneck:
    """What bounds the server: of the resources that are saturated, the one that hides the others."""
    if not seen.ready:
        return Bottleneck("engine", "L3", f"The engine is not ready: {seen.obstacle}.")
    for resource in found:
        if resource.state == "saturated":
            words, rows = _NEXT[resource.name]
            return Bottleneck(resource.name, resource.layer, f"{resource.meaning} {words}", rows)
    if not seen.steps.steps:
        return Bottleneck(None, None, "The engine computed nothing: there was no load to judge it by.")
    if seen.busy < BUSY:
        return Bottleneck(None, None, f"Nothing is saturated: the engine computed in {seen.busy:.0%} of the time.")
    return Bottleneck(None, None, f"Nothing is saturated, although the engine computed in {seen.busy:.0%} of the time.")
