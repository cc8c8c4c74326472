"""The page itself: plots beside the tables that they are drawn from, in the colours of the server's live page."""

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from urllib.parse import quote

from penstock import __version__
from penstock.cli.plan_page import plots
from penstock.cli.plan_report import counted, priced
from penstock.planning.asked import Asked
from penstock.planning.decisions import large, small
from penstock.planning.interval import Interval
from penstock.planning.money import Money
from penstock.planning.plan import Plan

# Nothing is fetched, and no script runs.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page_of(plan: Plan, asked: Asked, name: str, slo: str | None, day: str) -> str:
    """The page of a model's plan; `slo` are the service levels as they were asked for, `day` is when it is made."""
    server = files("penstock.server.page") / "static"
    style = (server / "style.css").read_text() + (files("penstock.cli.plan_page") / "style.css").read_text()
    icon = (server / "icon.svg").read_text()
    title = f"{name} on {plan.machine}"
    cards = [*_speed(plan, asked, slo), _memory(plan), *_choices(plan), *_money(plan, asked), _notes(plan.notes)]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)} – Penstock plan</title>
<link rel="icon" href="data:image/svg+xml,{quote(icon)}">
<style>
{style}</style>
</head>
<body>
<header class="top"><span class="brand"><img src="data:image/svg+xml,{quote(icon)}" alt="" width="26" height="26">
Penstock plan</span></header>
<main>
<h1 id="what">{escape(title)}</h1>
<p class="lead">{escape(_lead(plan, asked))}</p>
<div class="grid">
{"".join(cards)}
</div>
</main>
<footer class="foot"><span>penstock plan {escape(__version__)}, {escape(day)}</span>
<span>Estimates, not measurements; each has its interval.</span></footer>
</body>
</html>
"""


def _lead(plan: Plan, asked: Asked) -> str:
    workload = asked.workload
    how = f"{asked.rate:g} a second" if asked.rate is not None else f"{workload.concurrency:.0f} at a time"
    cached = f", {workload.cached_tokens:.0f} of them cached" if workload.cached_tokens else ""
    devices = asked.deployment.devices
    each = f", {devices} {'devices a replica' if asked.machine.device.parts == 1 else 'ranks'}" if devices > 1 else ""
    return (
        f"{plan.parameters / 1e9:.2f}B parameters, {plan.active_parameters / 1e9:.2f}B a token{each}. Requests of "
        f"{workload.input_tokens:.0f} tokens in{cached}, {workload.output_tokens:.0f} out; {how}."
    )


def _speed(plan: Plan, asked: Asked, slo: str | None) -> list[str]:
    """Estimates, the roofline and the sweep; nothing where the model does not fit."""
    speed, bounds = plan.estimate, plan.bounds
    if speed is None:
        return []
    rows = [
        ("first token", *_ends(speed.ttft_ms, "ms"), f"{bounds.prefill_ms:,.1f} ms"),
        ("each further token", *_ends(speed.tpot_ms, "ms"), f"{bounds.step_ms:,.1f} ms"),
        ("output", *_ends(speed.output_tokens_per_second, "tokens/s"), ""),
    ]
    if plan.most_tokens_per_second is not None:
        rows.append(("output where requests always wait", *_ends(plan.most_tokens_per_second, "tokens/s"), ""))
    table = _table(("estimate", "value", "from", "to", "no engine is below"), rows)
    said = f"These stand on {speed.tpot_ms.basis}."
    for when, load in (("", plan.load), (" in the busiest minute", plan.peak)):
        if load is None:
            continue
        said += (
            f" The rate of {load.rate:.4g} a second{when} takes {counted(load.replicas, 'replica')}, "
            f"{load.utilisation:.0%} full, with {load.in_flight:,.1f} requests at a time; 99% wait "
            f"{load.waiting_p99:.2f} s or less for a place."
        )
    within = [] if slo is None else ["within"]
    sweep = [
        (
            f"{point.concurrency:,}",
            f"{point.ttft_ms:,.0f} ms",
            f"{point.tpot_ms:,.1f} ms",
            f"{point.output_tokens_per_second:,.0f}",
            "" if point.gain is None else f"{point.gain:+.0%}",
            *([] if point.within is None else ["yes" if point.within else "no"]),
            point.limit,
        )
        for point in plan.sweep
    ]
    names = ("at a time", "TTFT", "TPOT", "tokens/s", "gain", *within, "most of a step")
    ends = "" if plan.knee is None else f"Behind {plan.knee:,} at a time, a doubling brings less than a fifth. "
    if slo is not None:
        ends += f"Asked for is {slo}; " + (
            "nothing keeps it." if plan.largest is None else f"up to {plan.largest:,} at a time keep it."
        )
    return [
        _card("Speed", table + _note(said), "full"),
        _plot(
            "Roofline",
            plots.roofline(plan),
            "Steps on one device: the green dots are decodes of the sweep, the other one is a whole prompt. Operations "
            "are products with weights.",
        ),
        _plot(
            "Throughput against latency",
            plots.throughput(plan, asked),
            f"One replica over the batch. The bars are the likely ends of TPOT. {ends}",
        ),
        _card("Sweep of one replica", _table(names, sweep, words=1), "half"),
    ]


def _choices(plan: Plan) -> list[str]:
    """What else could be set, and how else the devices could be shared out."""
    cards = []
    if plan.levers:
        rows = [
            (
                lever.what,
                f"{lever.ttft_ms:,.0f} ms",
                f"{lever.tpot_ms:,.1f} ms",
                f"{lever.output_tokens_per_second:,.0f}",
                f"{lever.gain:+.0%}",
                f"{lever.max_concurrency:,}",
            )
            for lever in plan.levers
        ]
        names = ("each change alone", "TTFT", "TPOT", "tokens/s", "gain", "requests that fit")
        cards.append(_card("Changes", _table(names, rows), "full"))
    if len(plan.layouts) > 1:
        ways = [
            (
                str(layout),
                f"{layout.concurrency:,}" if layout.concurrency else "",
                f"{layout.tpot_ms:,.1f} ms" if layout.concurrency else "",
                f"{layout.output_tokens_per_second:,.0f}" if layout.concurrency else "",
                "" if layout.dollars_million is None else small(layout.dollars_million),
                layout.why,
            )
            for layout in plan.layouts
        ]
        names = ("layout", "at a time on a replica", "TPOT", "tokens/s", "a million tokens", "why")
        cards.append(_card(f"Layouts of {plan.machine}", _table(names, ways, words=1), "full"))
    return cards


def _memory(plan: Plan) -> str:
    memory = plan.memory
    fits = f"{memory.max_concurrency:,} requests of {memory.context:,} tokens fit into a replica's cache."
    said = (
        f"An engine takes {memory.usable_bytes / 1e9:,.1f} GB of the device. A token keeps "
        f"{memory.kv_bytes_per_token / 1024:,.1f} KiB on all devices. {fits if memory.fits else 'It does not fit.'}"
    )
    caption = f"<figcaption>{escape(said)}</figcaption>"
    return _card("Memory of a device", f'<figure class="plot">{plots.memory(plan)}{caption}</figure>', "half")


def _money(plan: Plan, asked: Asked) -> list[str]:
    """Costs, the plot of them against an API, and decisions; nothing where no price of a device is known."""
    money = plan.money
    if money is None:
        return []
    million = money.million
    costs = [("input", million.input), ("cached input", million.cached), ("output", million.output)]
    rows = [
        (name, *(small(end) for end in (cost.value, cost.low, cost.high))) for name, cost in costs if cost is not None
    ]
    operations = f" and ${asked.operations_month:,.0f} for operations" if asked.operations_month else ""
    price = priced(money.device_hour, money.device_price, asked.machine.device)
    said = (
        f"At {price}: ${money.month:,.0f} a month for {counted(money.devices, 'device')}{operations}, "
        f"for {money.requests_a_month:,.0f} requests at {money.utilisation:.0%} utilisation. A request's cost is "
        f"shared out by device seconds; {million.prompt_part:.0%} of them are its prompt's."
    )
    said += "" if money.api is not None else " With --api-price, costs against volume are drawn here."
    column = _card("Dollars a million tokens", _table(("tokens", "value", "from", "to"), rows) + _note(said), "")
    column += "" if money.owning is None else _owning(money)
    cards = [f'<div class="half column">{column}</div>']
    cards += _volume(money, None if plan.load is None else money.requests_a_month)
    if money.decisions:
        decided = "".join(
            f"<div><dt>{escape(each.question)}</dt><dd><b>{escape(each.answer)}</b>: {escape(each.because)}</dd></div>"
            for each in money.decisions
        )
        cards.append(_card("Decisions", f'<dl class="decisions">{decided}</dl>', "full"))
    return cards


def _volume(money: Money, requests: float | None) -> list[str]:
    volume, api = money.volume, money.api
    if volume is None or api is None:
        return []
    which = f"{api.model}: " if api.model else ""
    when = f", as of {api.as_of}" if api.as_of else ""
    meets = "own replicas cost more at every volume"
    if volume.first is not None:
        meets = f"the costs meet at {volume.first:,.0f} requests, {large(volume.first * volume.request_tokens)} tokens"
    said = (
        f"API: {which}${api.input:g} a million input tokens, ${api.output:g} output{when}. A replica costs "
        f"${volume.replica_month:,.0f} and serves {volume.replica_requests:,.0f} requests a month at "
        f"{volume.utilisation:.0%} utilisation; {meets}."
    )
    return [_plot("Cost against volume", plots.cost(volume, requests), said)]


def _owning(money: Money) -> str:
    owned = money.owning
    assert owned is not None
    taken = owned.purchase
    months = "never" if owned.break_even_months is None else f"after {owned.break_even_months:.1f} months"
    rows = [
        ("rent", f"${owned.rent_month:,.0f} a month"),
        ("own", f"${owned.own_month:,.0f} a month"),
        ("of it power", f"${owned.power_month:,.0f} a month"),
        ("paid for by the rent saved", months),
        ("cheaper, if used more than", f"{owned.least_hours:.0%} of the hours"),
    ]
    said = (
        f"${taken.dollars:,.0f} a device over {taken.years:g} years, {taken.watts:,.0f} W at a PUE of {taken.pue:g} "
        f"and ${taken.kwh:g} a kWh, ${taken.upkeep:,.0f} a month of upkeep."
    )
    return _card("Rent or buy", _table(("", "one device"), rows) + _note(said), "")


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return _card("Notes", f'<ul class="notes">{items}</ul>', "full")


def _ends(figure: Interval, unit: str) -> tuple[str, str, str]:
    return f"{figure.value:,.1f} {unit}", f"{figure.low:,.1f}", f"{figure.high:,.1f}"


def _card(title: str, content: str, size: str) -> str:
    return f'<section class="{f"card {size}".rstrip()}"><h2>{escape(title)}</h2>{content}</section>\n'


def _plot(title: str, drawn: str, said: str) -> str:
    caption = f"<figcaption>{escape(said)}</figcaption>"
    return _card(title, f'<figure class="plot">{drawn}{caption}</figure>', "half")


def _note(said: str) -> str:
    return f'<p class="note">{escape(said)}</p>'


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], words: int = 0) -> str:
    """A table whose first column names its rows; the last `words` columns are words, the others numbers."""
    numbers = len(names) - words
    kinds = [' class="number"' if index < numbers else ' class="words"' for index in range(1, len(names))]
    first, *others = names
    head = f'<th scope="col">{escape(first)}</th>' + "".join(
        f'<th scope="col"{kind}>{escape(name)}</th>' for kind, name in zip(kinds, others, strict=True)
    )
    body = ""
    for begin, *cells in rows:
        tail = "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, cells, strict=True))
        body += f'<tr><th scope="row">{escape(begin)}</th>{tail}</tr>'
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
