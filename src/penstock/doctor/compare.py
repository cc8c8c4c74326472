"""What has changed between two diagnoses: figures, and whether the bottleneck has moved. Pure."""

import msgspec

from penstock.doctor.diagnosis import Diagnosis
from penstock.doctor.sheet import SheetRow

# Offered load that differs by more makes two reports hard to compare.
_SAME_LOAD = 0.2
_QUANTILES = ("p50", "p95", "p99")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One figure before and after; None where it was not measured.

    Attributes:
        better: whether it went the right way; None where it cannot be said, or hardly changed.
    """

    name: str
    unit: str
    before: float | None
    after: float | None
    better: bool | None

    @property
    def ratio(self) -> float | None:
        """The later figure by the earlier one; None where either is missing or the earlier is 0."""
        return self.after / self.before if self.before and self.after is not None else None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What has changed.

    Attributes:
        moved: whether another resource is the bottleneck now.
        sentence: the same in words.
        gone, new: rows of the sheet that no longer apply, and that apply now.
        notes: what makes the comparison doubtful.
    """

    changes: tuple[Change, ...]
    moved: bool
    sentence: str
    gone: tuple[int, ...]
    new: tuple[int, ...]
    notes: tuple[str, ...]


def compare(before: Diagnosis, after: Diagnosis) -> Comparison:
    """From the earlier report to the later one."""
    was, is_now = before.bottleneck.resource, after.bottleneck.resource
    if was == is_now:
        sentence = f"The bottleneck has not moved: it is still {is_now}." if is_now else "Neither had a bottleneck."
    elif is_now is None:
        sentence = f"The bottleneck is gone: it was {was}, and nothing is saturated now."
    elif was is None:
        sentence = f"There is a bottleneck now: {is_now}."
    else:
        sentence = f"The bottleneck has moved from {was} to {is_now}."
    applied, applies = _applying(before.sheet), _applying(after.sheet)
    return Comparison(
        changes=_changes(before, after),
        moved=was != is_now,
        sentence=sentence,
        gone=tuple(sorted(applied - applies)),
        new=tuple(sorted(applies - applied)),
        notes=_notes(before, after),
    )


def _applying(sheet: tuple[SheetRow, ...]) -> set[int]:
    return {row.number for row in sheet if row.verdict == "applies"}


def _changes(before: Diagnosis, after: Diagnosis) -> tuple[Change, ...]:
    first, second = before.figures, after.figures
    found = [
        _change("requests", "1/s", first.requests, second.requests, more=True),
        _change("output tokens", "1/s", first.output_tokens, second.output_tokens, more=True),
        _change("goodput", "1/s", first.goodput, second.goodput, more=True),
        _change("within service levels", "share", first.attainment, second.attainment, more=True),
        _change(
            "cost per million tokens", "", first.cost_per_million_tokens, second.cost_per_million_tokens, more=False
        ),
    ]
    for name in first.latency:
        if name not in second.latency:
            continue
        for quantile in _QUANTILES:
            values = (getattr(figures.latency[name], quantile) for figures in (first, second))
            found.append(_change(f"{name} {quantile}", "s", *values, more=False))
    return tuple(change for change in found if change.before is not None or change.after is not None)


def _change(name: str, unit: str, before: float | None, after: float | None, *, more: bool) -> Change:
    better = None
    if before is not None and after is not None and abs(after - before) > 0.05 * max(abs(before), abs(after)):
        better = (after > before) is more
    return Change(name=name, unit=unit, before=before, after=after, better=better)


def _notes(before: Diagnosis, after: Diagnosis) -> tuple[str, ...]:
    notes = []
    if before.model != after.model:
        notes.append(f"They are of different models: {before.model} and {after.model}.")
    if before.slo != after.slo:
        notes.append("The service levels are different, so goodput is not of the same.")
    first, second = before.figures.prompt_tokens, after.figures.prompt_tokens
    if abs(first - second) > _SAME_LOAD * max(first, second):
        notes.append(
            f"The load was different: {first:,.0f} prompt tokens/s before, {second:,.0f} now; put the same on both "
            "(penstock bench serve), or latencies say little."
        )
    return tuple(notes)
