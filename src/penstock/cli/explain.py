"""`penstock explain`: why a request took as long as it did, as a timeline of bars."""

import sys
import time
from typing import Any
from urllib.parse import quote

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from penstock.cli.bench_serve import read_key
from penstock.cli.log_format import visible
from penstock.cli.remote import get, read_as
from penstock.gateway.ways import Cached, Way
from penstock.observability.explain.explanation import (
    Cause,
    ContextAccount,
    Explanation,
    Part,
    Phase,
    PrefixAccount,
    RequestList,
    TierAccount,
)
from penstock.observability.explain.timeline import LEFT
from penstock.observability.explain.wording import duration, number

_BAR = 40
# Parts of a phase that are shown; the longest, where there are more.
_PARTS = 12
# What is shorter is left out of the list of causes.
_LEAST_SHARE = 0.005
_WIDE = 1000

_COLORS = {
    "receive": "white",
    "prepare": "cyan",
    "grammar": "magenta",
    "find": "bright_cyan",
    "queue": "yellow",
    "fetch": "bright_blue",
    "prefill": "blue",
    "decode": "green",
    "deliver": "red",
}
_MISSING = {
    "unseen": "no request had sent what follows",
    "different": "what was cached goes on otherwise",
    "evicted": "it had been evicted",
    "other_tenant": "it is there for another tenant only",
    "off": "there is no prefix cache for it",
}


# What other versions of a server may say is shown as it is.
_LEFT: dict[str, str] = {str(why): words for why, words in LEFT.items()}


def run_explain(
    request: str | None,
    url: str,
    api_key: str | None,
    admin_socket: str | None,
    *,
    slowest: bool,
    limit: int,
    as_json: bool,
) -> None:
    """Show one request, or a list of recent ones. Raises ConfigurationError."""
    asked: dict[str, Any] = {"key": read_key(api_key), "admin_socket": admin_socket}
    # What is read by a program is not cut to the width of a screen.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
    if request is None:
        order = "slowest" if slowest else "newest"
        listed = get(url, f"/v1/requests?limit={limit}&order={order}", RequestList, **asked)
        if as_json:
            sys.stdout.write(msgspec.json.encode(listed).decode() + "\n")
        elif not listed.data:
            console.print("No request that generates or embeds has come lately.")
        else:
            console.print(request_table(listed))
        return
    told = get(url, f"/v1/requests/{quote(request, safe='')}/explain", dict[str, msgspec.Raw], **asked)
    if as_json:
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
        return
    if (way := told.pop("gateway", None)) is not None:
        show_way(read_as(Way, way, url), console, explained=bool(told))
    if told:
        show(read_as(Explanation, msgspec.json.encode(told), url), console)


def request_table(listed: RequestList) -> Table:
    """Recent requests, with what took their time."""
    table = Table("request", "came", "endpoint", "ended", box=None, pad_edge=False, header_style="bold")
    for heading in ("seconds", "first token", "tokens"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("most of it")
    for each in listed.data:
        table.add_row(
            each.id,
            time.strftime("%H:%M:%S", time.localtime(each.created)),
            each.endpoint,
            each.outcome or each.state,
            duration(each.seconds),
            "–" if each.time_to_first_token is None else duration(each.time_to_first_token),
            f"{number(each.prompt_tokens)} + {number(each.output_tokens)}",
            f"{each.verdict.cause} ({duration(each.verdict.seconds)})"
            + (f", {escape(each.verdict.setting)}" if each.verdict.setting else ""),
        )
    return table


def show_way(way: Way, console: Console, *, explained: bool) -> None:
    """A request's way through a gateway; `explained`: what its replica says follows."""
    ended = f"{way.outcome} after {duration(way.seconds)}" if way.seconds is not None else "is under way"
    console.print(f"[bold]{escape(way.id)}[/bold] at the gateway: {way.path}, {ended}")
    for check in way.checked:
        why = f": {visible(check.why)}" if check.why else ""
        spent = f"{duration(check.seconds)}, asked {check.times} times" if check.times > 1 else duration(check.seconds)
        said = f"  the guardrail {visible(check.guardrail)}, {check.when}: {check.result} ({spent}){why}"
        console.print(escape(said), soft_wrap=True)
    if way.cached is not None:
        console.print(escape(f"  {_cached(way.cached)}"), soft_wrap=True)
    for each in way.tries:
        spent = "" if each.seconds is None else f" for {duration(each.seconds)}"
        ended = visible(each.ended or "it is there")
        where = f"  after {duration(each.at)} at {each.replica}{spent}: {ended}; sent there since {each.reason}"
        console.print(escape(where), soft_wrap=True)
        for name, why in each.others.items():
            console.print(escape(f"    not at {name}: {visible(why)}"), soft_wrap=True)
    if way.tries:
        console.print("" if explained else "  The replica does not say what it did.")


def _cached(cached: Cached) -> str:
    """What the answer cache had."""
    match cached.lookup:
        case "hit":
            return f"it was given an answer of the answer cache, {duration(cached.age or 0.0)} old"
        case "miss":
            return "the answer cache had no answer for it"
        case "away":
            return f"the store of answers did not say what it has: {visible(cached.why or '')}"
        case _:
            return f"its answer is not kept: {visible(cached.why or '')}"


def show(told: Explanation, console: Console) -> None:
    """One request: what it was, its timeline, its causes, and the verdict."""
    console.print(_heading(told), soft_wrap=True)
    for line in _notes(told):
        console.print(escape(visible(line)), soft_wrap=True)
    console.print()
    console.print(timeline_table(told))
    console.print()
    console.print(cause_table(told.causes))
    console.print()
    console.print(f"[bold]{escape(told.verdict.sentence)}[/bold]", soft_wrap=True)


def _heading(told: Explanation) -> str:
    status = "" if told.status is None else f" ({told.status})"
    ended = f"{told.outcome}{status}" if told.outcome is not None else f"is {told.state}"
    prompts = f" in {told.prompts} prompts, number {told.prompt + 1} of them" if told.prompts > 1 else ""
    return (
        f"[bold]{escape(told.id)}[/bold] {told.endpoint}, {ended}, {duration(told.seconds)}: "
        f"{number(told.prompt_tokens)} prompt tokens{prompts}, {number(told.output_tokens)} output tokens"
    )


def _notes(told: Explanation) -> list[str]:
    lines = []
    names = {"model": told.model, "response": told.response_id, "client's id": told.client_id, "tenant": told.tenant}
    known = [f"{name} {value}" for name, value in names.items() if value]
    if known:
        lines.append(", ".join(known))
    if told.ignored:
        lines.append(f"asked for with fields that had no effect: {', '.join(told.ignored)}")
    if told.missed:
        lines.append(f"missed its service level of {', '.join(told.missed)}")
    if told.error is not None:
        lines.append(f"error {told.error.code}: {told.error.message}")
    if told.waits_for is not None:
        lines.append(f"It waits for {told.waits_for}.")
    if told.time_to_first_token is not None:
        queue = "" if told.queue_seconds is None else f", {duration(told.queue_seconds)} of it in the queue"
        lines.append(f"first token after {duration(told.time_to_first_token)}{queue}")
    if told.prefix is not None and told.prefix.looked_up:
        lines.append(_prefix(told.prefix))
        lines += [_tier(each) for each in told.prefix.tiers]
    if told.context is not None:
        lines.append(_context(told.context))
    if told.decode is not None:
        batch = "" if told.decode.mean_batch is None else f", {told.decode.mean_batch:.1f} sequences at a time"
        memory = "" if told.decode.memory_share is None else f", {told.decode.memory_share:.0%} of what memory allows"
        right = f"{number(told.decode.accepted_tokens)} of {number(told.decode.drafted_tokens)} drafted tokens right"
        drafts = f", {right}" if told.decode.drafted_tokens else ""
        among = f", found among {number(told.decode.searched_tokens)} tokens of all beams"
        beams = among if told.decode.searched_tokens else ""
        lines.append(f"{told.decode.tokens_per_second:.1f} tokens/s behind the first{beams}{batch}{memory}{drafts}")
    return lines


def _context(context: ContextAccount) -> str:
    bound = f"context bounded by {context.type} to {number(context.tokens)} tokens"
    if context.exact:
        return f"{bound}: nothing was dropped"
    return f"{bound}: {number(context.dropped_tokens)} were dropped, so that its answer depends on the load"


def _prefix(prefix: PrefixAccount) -> str:
    text = f"prefix cache: {number(prefix.found)} of {number(prefix.looked_up)} tokens found"
    if prefix.missing is not None:
        text += f"; {_MISSING.get(prefix.missing, prefix.missing)}"
    if prefix.evicted_seconds is not None:
        text += f" {duration(prefix.evicted_seconds)} before"
    if prefix.position is not None:
        text += f" from token {number(prefix.position)} on"
    if prefix.asked is not None and prefix.cached is not None:
        texts = [token.text if token.text is not None else str(token.id) for token in (prefix.asked, prefix.cached)]
        text += f": {texts[0]!r} and not {texts[1]!r}"
    return text


def _tier(told: TierAccount) -> str:
    text = f"  {told.tier}: {number(told.tokens)} tokens, {told.bytes / 2**20:,.1f} MiB"
    if told.seconds is not None:
        text += f", waited for {duration(told.seconds)}"
    if told.why_left is not None:
        text += f"; {number(told.left)} tokens {_LEFT.get(told.why_left, told.why_left)}"
    if told.read_seconds is not None and told.compute_seconds is not None:
        expected = f"{duration(told.read_seconds)} to read, {duration(told.compute_seconds)} to compute"
        text += f" (expected: {expected})"
    return text


def timeline_table(told: Explanation) -> Table:
    """A bar for each phase, and below it one for each of its longest parts."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, width=_BAR)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for phase in told.timeline:
        color = _COLORS[phase.name]
        table.add_row(phase.name, _bar(phase, told.seconds, color), duration(phase.seconds), escape(phase.detail))
        longest = sorted(phase.parts, key=lambda part: -part.seconds)[:_PARTS]
        for part in phase.parts:
            if part in longest:
                bar = _bar(part, told.seconds, f"dim {color}")
                table.add_row(f"  {part.name}", bar, duration(part.seconds), escape(part.detail))
        if len(phase.parts) > _PARTS:
            table.add_row("", "", "", f"and {len(phase.parts) - _PARTS} shorter ones")
    return table


def _bar(span: Phase | Part, whole: float, style: str) -> Text:
    """Where it lies in the whole; at least a thin stroke."""
    if not whole:
        return Text("▏", style)
    first = min(int(span.start / whole * _BAR), _BAR - 1)
    last = min(round((span.start + span.seconds) / whole * _BAR), _BAR)
    return Text(" " * first + ("█" * (last - first) if last > first else "▏"), style)


def cause_table(causes: list[Cause]) -> Table:
    """What took its time, the most first."""
    table = Table("cause", box=None, pad_edge=False, header_style="bold")
    for heading in ("seconds", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("would be changed by")
    for cause in causes:
        if cause.share >= _LEAST_SHARE:
            table.add_row(cause.code, duration(cause.seconds), f"{cause.share:.1%}", escape(cause.setting or "–"))
    return table
