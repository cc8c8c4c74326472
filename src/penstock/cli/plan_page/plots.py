"""The plots of a plan: roofline, throughput against latency, a device's memory, cost against volume."""

from math import ceil

from penstock.cli.plan_page import svg
from penstock.cli.plan_report import memory_parts
from penstock.planning.asked import Asked
from penstock.planning.decisions import large
from penstock.planning.plan import Plan, SweepPoint
from penstock.planning.roofline import Roofline, RooflinePoint
from penstock.planning.volume import Volume

# More steps than this are not seen as steps.
_MOST_STEPS = 120


def roofline(plan: Plan) -> str:
    """What the device's limits allow by operations for each byte, and where prefill and decodes are."""
    roof = plan.roofline
    assert roof is not None
    points = roof.points
    least = min(point.intensity for point in points) / 2
    most = max(roof.ridge, *(point.intensity for point in points)) * 3
    lowest = min(min(point.reached for point in points), least * roof.bandwidth) / 2e12
    across = svg.horizontal(least, most, logarithmic=True)
    up = svg.vertical(lowest, roof.peak * 2 / 1e12, logarithmic=True)

    def place(intensity: float, rate: float) -> tuple[float, float]:
        return across.at(intensity), up.at(rate / 1e12)

    roof_line = [(least, least * roof.bandwidth), (roof.ridge, roof.peak), (most, roof.peak)]
    parts = svg.frame(across, up, "operations for each byte moved", "tera-operations a second")
    parts.append(svg.line("roof", [place(*end) for end in roof_line]))
    x, y = place(roof.ridge, roof.peak)
    parts.append(svg.line("guide", [(x, y), (x, svg.BOTTOM)]))
    parts.append(svg.text(x - 6, svg.BOTTOM - 8, f"ridge {roof.ridge:,.0f}", "said", anchor="end"))
    decodes = [point for point in points if point.phase == "decode"]
    parts.append(svg.line("series", [place(point.intensity, point.reached) for point in decodes]))
    for point in points:
        kind = "dot" if point.phase == "decode" else "dot other"
        parts.append(svg.mark(kind, *place(point.intensity, point.reached), _of_roofline(point)))
    first, last = decodes[0], decodes[-1]
    x, y = place(first.intensity, first.reached)
    parts.append(svg.text(x + 9, y + 14, f"decode, {first.concurrency:,}", "said"))
    if last is not first:
        x, y = place(last.intensity, last.reached)
        beyond = x > svg.RIGHT - 100
        words = f"decode, {last.concurrency:,}"
        parts.append(svg.text(x if beyond else x + 9, y + (24 if beyond else 14), words, "said", _anchor(beyond)))
    prompt = next(point for point in points if point.phase == "prefill")
    x, y = place(prompt.intensity, prompt.reached)
    parts.append(svg.text(x, y - 9, "prefill", "said", anchor="middle"))
    return svg.drawing("roofline", f"Roofline of {plan.machine}", _roofline_words(roof, prompt, decodes), parts)


def _roofline_words(roof: Roofline, prompt: RooflinePoint, decodes: list[RooflinePoint]) -> str:
    first, last = decodes[0], decodes[-1]
    return (
        f"The roof is {roof.bandwidth / 1e9:,.0f} GB/s up to {roof.ridge:,.0f} operations for each byte, then "
        f"{roof.peak / 1e12:,.0f} tera-operations a second. {_of_roofline(prompt)}. {_of_roofline(first)}. "
        f"{_of_roofline(last)}."
    )


def _of_roofline(point: RooflinePoint) -> str:
    what = "Prefill" if point.phase == "prefill" else f"Decode, {point.concurrency:,} at a time"
    return (
        f"{what}: {point.intensity:,.1f} operations for each byte, {point.reached / 1e12:,.1f} of "
        f"{point.attainable / 1e12:,.1f} tera-operations a second ({point.reached / point.attainable:.0%})"
    )


def throughput(plan: Plan, asked: Asked) -> str:
    """Tokens a second of a replica against the time for each token, over the batch, with likely ends."""
    points, speed = plan.sweep, plan.estimate
    assert speed is not None
    low, high = (end / speed.tpot_ms.value for end in (speed.tpot_ms.low, speed.tpot_ms.high))
    limit = None if asked.tpot is None else asked.tpot * 1e3
    times = [point.tpot_ms for point in points]
    ends = [min(times) * low, max(times) * high] + ([] if limit is None else [limit])
    across = svg.horizontal(min(ends) / 1.2, max(ends) * 1.2, logarithmic=True)
    rates = [point.output_tokens_per_second for point in points]
    up = svg.vertical(min(rates) / 1.5, max(rates) * 2, logarithmic=True)
    parts = svg.frame(across, up, "ms for each further token (TPOT)", "output tokens a second")
    if limit is not None:
        x = across.at(limit)
        parts.append(svg.line("limit", [(x, svg.TOP), (x, svg.BOTTOM)]))
        before = x > (svg.LEFT + svg.RIGHT) / 2
        told = f"SLO {limit:g} ms"
        parts.append(svg.text(x - 6 if before else x + 6, svg.BOTTOM - 8, told, "said warn", _anchor(before)))
    places = [(across.at(point.tpot_ms), up.at(point.output_tokens_per_second)) for point in points]
    for point, (_, y) in zip(points, places, strict=True):
        parts.append(svg.line("likely", [(across.at(point.tpot_ms * low), y), (across.at(point.tpot_ms * high), y)]))
    parts.append(svg.line("series", places))
    for point, (x, y) in zip(points, places, strict=True):
        kind = "dot" if point.within is not False else "dot missed"
        parts.append(svg.mark(kind, x, y, _of_sweep(point)))
        named = {points[0].concurrency: "", points[-1].concurrency: "", plan.knee: ", knee"}
        if point.concurrency in named or (asked.tpot or asked.ttft) and point.concurrency == plan.largest:
            words = f"{point.concurrency:,}{named.get(point.concurrency, '')}"
            parts.append(svg.text(x - 8, y - 9, words, "said", anchor="end"))
    words = f"{_of_sweep(points[0])}. {_of_sweep(points[-1])}."
    words += "" if plan.knee is None else f" The knee is at {plan.knee:,} at a time."
    return svg.drawing("throughput", "Throughput against latency of one replica", words, parts)


def _of_sweep(point: SweepPoint) -> str:
    missed = ", beyond the service levels" if point.within is False else ""
    return (
        f"{point.concurrency:,} at a time: {point.output_tokens_per_second:,.0f} tokens a second, TPOT "
        f"{point.tpot_ms:.1f} ms, TTFT {point.ttft_ms:.0f} ms{missed}"
    )


def memory(plan: Plan) -> str:
    """What a device's memory holds, as one bar; what does not fit goes beyond the device's end."""
    sizes = [(name, size) for name, size in memory_parts(plan)[1:] if size > 0]
    taken = sum(size for _, size in sizes)
    device = plan.memory.device_bytes
    spare = device - plan.memory.usable_bytes
    sizes.append(("not taken by engines", max(0, min(spare, device - taken))))
    scale = svg.Scale(0, max(device, taken), 12, svg.WIDTH - 12)
    parts, begin, row = [], 0.0, 0
    for number, (name, size) in enumerate(sizes):
        told = f"{name}: {size / 1e9:.2f} GB, {size / device:.0%} of the device"
        parts.append(svg.box(f"part part-{_PARTS[name]}", scale.at(begin), 30, scale.at(size) - 12, 44, told))
        begin += size
        row = 104 + 24 * number
        parts.append(svg.box(f"part part-{_PARTS[name]}", 12, row - 11, 13, 13, told))
        parts.append(svg.text(33, row, name, "said"))
        parts.append(svg.text(svg.WIDTH - 12, row, f"{size / 1e9:,.2f} GB", "said", anchor="end"))
    end = scale.at(device)
    parts.append(svg.line("limit", [(end, 22), (end, 82)]))
    parts.append(svg.text(end, 16, f"{device / 1e9:,.0f} GB", "tick", anchor="end"))
    words = "; ".join(f"{name} {size / 1e9:.2f} GB" for name, size in sizes)
    return svg.drawing("memory", f"Memory of one device, {device / 1e9:,.0f} GB", f"{words}.", parts, row + 14)


_PARTS = {
    "weights": "weights",
    "activations": "activations",
    "driver and fragments": "overhead",
    "left for the cache": "cache",
    "not taken by engines": "free",
}


def cost(volume: Volume, requests: float | None) -> str:
    """Dollars a month of own replicas, in steps, and of the API, by requests a month."""
    most = max((volume.first or 0) * 2.2, (volume.always or 0) * 1.15, (requests or 0) * 1.3)
    if volume.first is None or not most:
        most = max(most, 4 * volume.replica_requests)
    across = svg.horizontal(0, most)
    up = svg.vertical(0, max(volume.own(most), volume.api(most)) * 1.08)
    parts = svg.frame(across, up, "requests a month", "dollars a month", dollars="$")
    parts.append(svg.line("series", [(across.at(x), up.at(y)) for x, y in _steps(volume, most)]))
    parts.append(svg.line("other-series", [(across.at(0), up.at(0)), (across.at(most), up.at(volume.api(most)))]))
    parts += _ends(volume, across, up, most)
    words = "Own replicas cost more at every volume."
    if volume.first is not None:
        x, y = across.at(volume.first), up.at(volume.api(volume.first))
        words = f"They cost the same at {large(volume.first)} requests and ${volume.api(volume.first):,.0f} a month."
        parts.append(svg.line("guide", [(x, svg.TOP + 18), (x, svg.BOTTOM)]))
        parts.append(svg.mark("dot crossing", x, y, words, 6))
        told, near = f"same at {large(volume.first)}", x < (svg.LEFT + svg.RIGHT) / 2
        parts.append(svg.text(x + 6 if near else x - 6, svg.TOP + 30, told, "said", _anchor(not near)))
    if requests is not None:
        x = across.at(requests)
        parts.append(svg.line("limit", [(x, svg.TOP), (x, svg.BOTTOM)]))
        parts.append(svg.text(x - 6, svg.TOP + 12, "this rate", "said warn", anchor="end"))
    return svg.drawing("cost", "Cost of a month against volume", words, parts)


def _steps(volume: Volume, most: float) -> list[tuple[float, float]]:
    """The corners of the steps; where there are very many, only some of them."""
    last = volume.replicas(most)
    every = ceil(last / _MOST_STEPS)
    corners = [(0.0, volume.own(0))]
    for count in range(every, last, every):
        end = count * volume.replica_requests
        corners += [(end, volume.own(end)), (end, volume.own(end * (1 + 1e-9)))]
    return [*corners, (most, volume.own(most))]


def _ends(volume: Volume, across: svg.Scale, up: svg.Scale, most: float) -> list[str]:
    """Names at the right ends of both lines, the higher one above its line and the lower one below."""
    x, own, api = across.at(most) - 4, up.at(volume.own(most)), up.at(volume.api(most))
    own, api = (own - 9, api + 26) if own <= api else (own + 26, api - 9)
    own, api = (min(max(y, svg.TOP + 10), svg.BOTTOM - 6) for y in (own, api))
    return [
        svg.text(x, own, "own replicas", "said accent", anchor="end"),
        svg.text(x, api, "API", "said other", anchor="end"),
    ]


def _anchor(before: bool) -> str:
    """Which part of words is at their place, where they stand before it."""
    return "end" if before else "start"
