"""`penstock evaluate`: what smaller weights cost a model, before they are relied on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.assembly.scorer import load_scorer
from penstock.bench.answers import FEWEST_ANSWERS, is_worse
from penstock.bench.drawing import check_plots
from penstock.bench.engine import as_text
from penstock.bench.quality_plot import draw_quality
from penstock.cli.files import check_writable, json_bytes, read_text
from penstock.cli.serving_figures import Asked, Served, served_figures
from penstock.compression.scoring import COMPARISON_SEED, ScoredText, TextScorer, conversations, windows
from penstock.configuration.options import EngineOptions
from penstock.core.errors import ConfigurationError
from penstock.quantization.quality import Comparison, Estimate, Quality

_ROUNDED = {"none": "none", "int8": "int8", "int4": "int4", "own": "auto"}
_KV = "kv="
_WIDTH = 140


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a candidate must keep: everywhere, and of the perplexity in each third of the positions, too."""

    kl: float
    same_top: float
    perplexity_ratio: float


@dataclass(frozen=True, slots=True)
class Judged:
    """A candidate's figures, and why it does not pass, in sentences; there are none where it does."""

    name: str
    weights: str
    weight_bytes: int
    quality: Quality
    served: Served | None
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ComparedTexts:
    """What models are compared on: windows of `file`, or conversations of the calibration set; at most `most`."""

    file: Path | None
    most: int
    context: int


@dataclass(frozen=True, slots=True)
class Results:
    """Where figures are written and plots are drawn; None: nowhere."""

    json_file: Path | None
    plots: Path | None

    def check(self) -> None:
        """Raise ConfigurationError where that cannot be."""
        if self.json_file is not None:
            check_writable(self.json_file)
        if self.plots is not None:
            check_plots(self.plots)


def run_evaluate(
    base: str,
    candidates: list[str],
    texts: ComparedTexts,
    bounds: Bounds,
    serving: Asked,
    results: Results,
    options: dict[str, Any],
) -> int:
    """Measure, show, write and draw; 1 where a candidate does not pass. Raises ConfigurationError, StartupError.

    `options` are those of the engine. Answers and speed are those of models as they would be served, the base in its
    own precision.
    """
    results.check()
    if 0 < serving.answers < FEWEST_ANSWERS:
        raise ConfigurationError(
            f"--answers {serving.answers} are too few to tell a loss from chance; ask for {FEWEST_ANSWERS} at least."
        )
    asked = [_options(candidate, options) for candidate in candidates]
    plain = {**options, "dtype": "float32", "quantization": "none"}
    reference = load_scorer(EngineOptions.of(base, **plain), texts.context)
    read = _read(texts, reference)
    # A narrower table would cut its headings.
    console = Console(width=max(_WIDTH, Console().width))
    found = []
    own = None
    if serving.answers or serving.speed:
        with console.status(f"serving {base}"):
            own = served_figures(base, options, serving)
    for name, (model, changed) in zip(candidates, asked, strict=True):
        with console.status(f"comparing {name}"):
            quality, candidate = _compared(name, reference, EngineOptions.of(model, **changed), texts.context, read)
        served = None
        if own is not None:
            with console.status(f"serving {name}"):
                served = served_figures(model, changed, serving)
        failures = [*_failures(quality, bounds), *_lost_answers(own, served)]
        found.append(Judged(name, *candidate, quality, served, tuple(failures)))
    _show(console, base, reference, own, found)
    if results.json_file is not None:
        content = {
            "base": base,
            "bounds": bounds,
            "base_weight_bytes": reference.weight_bytes,
            "base_served": own,
            "candidates": found,
        }
        results.json_file.write_bytes(json_bytes(content))
    if results.plots is not None:
        drawn = draw_quality([(each.name, each.weight_bytes, each.quality.kl) for each in found], results.plots)
        console.print(f"Drawn: {drawn}")
    return int(any(judged.failures for judged in found))


def _read(texts: ComparedTexts, reference: TextScorer) -> list[ScoredText]:
    """What is compared, in tokens of the reference. Raises ConfigurationError where there is nothing."""
    path, vocabulary = reference.path, reference.vocab_size
    if texts.file is None:
        found = conversations(path, vocabulary, texts.context, texts.most, seed=COMPARISON_SEED)
    else:
        found = windows(path, vocabulary, read_text(texts.file, "--text"), texts.context, texts.most)
    if not found:
        raise ConfigurationError(
            f"There is nothing to compare in {texts.file or 'the conversations'} with --context {texts.context}; give "
            "longer texts."
        )
    return found


def _show(console: Console, base: str, reference: TextScorer, own: Served | None, found: Sequence[Judged]) -> None:
    console.print(_summary(base, reference, found))
    console.print(_by_difficulty(found))
    if own is not None:
        console.print(_as_served(base, own, found))
    for judged in found:
        verdict = "passes." if not judged.failures else f"does not pass. {' '.join(judged.failures)}"
        console.print(f"{judged.name} {verdict}", highlight=False, markup=False, soft_wrap=True)


def _options(candidate: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A model and its options: behind @ what weights are rounded to (behind / the head), kv= and the cache's type."""
    model, at, said = candidate.rpartition("@")
    parts = said.split(",")
    kv = [part.removeprefix(_KV) for part in parts if part.startswith(_KV)]
    rounded = [part.partition("/") for part in parts if not part.startswith(_KV)]
    if not at or len(kv) > 1 or len(rounded) > 1 or any(body not in _ROUNDED for body, _, _ in rounded):
        return candidate, options
    changes: dict[str, Any] = {"kv_cache_dtype": kv[0]} if kv else {}
    for body, _, head in rounded:
        changes |= {"quantization": _ROUNDED[body], "quantize_head": head or None}
    return model, {**options, **changes}


def _compared(
    name: str, reference: TextScorer, options: EngineOptions, context: int, texts: Sequence[ScoredText]
) -> tuple[Quality, tuple[str, int]]:
    """A candidate's quality, and what its weights are and take."""
    candidate = load_scorer(options, context)
    if candidate.vocab_size != reference.vocab_size:
        raise ConfigurationError(
            f"{name} has {candidate.vocab_size} tokens and {reference.name} {reference.vocab_size}: only models of one "
            "vocabulary can be compared."
        )
    comparison = Comparison()
    for text in texts:
        # What a token is compared by is computed at the one before it.
        at = text.compared.nonzero()[:, 0] - 1
        following = text.compared.new_tensor(text.ids, dtype=at.dtype)[text.compared]
        comparison.add(reference.logits(text.ids)[at], candidate.logits(text.ids)[at], following)
    weights = candidate.dtype if candidate.quantization == "none" else candidate.quantization
    return comparison.result(), (weights, candidate.weight_bytes)


def _lost_answers(base: Served | None, candidate: Served | None) -> Iterator[str]:
    if base is None or candidate is None:
        return
    for task, right in base.right.items():
        if is_worse(right, candidate.right[task]):
            yield f"It answers {sum(candidate.right[task])} of {len(right)} {task} right, the base {sum(right)}."


def _failures(quality: Quality, bounds: Bounds) -> Iterator[str]:
    # A figure that is none is within no bounds.
    if not quality.kl.value <= bounds.kl:
        yield f"Its KL is {quality.kl.value:.4f}, above --max-kl {bounds.kl:g}."
    if not quality.same_top.value >= bounds.same_top:
        yield f"Its top token is the same at {quality.same_top.value:.2%}, below --min-same-top {bounds.same_top:.2%}."
    where = [("all positions", quality.perplexity_ratio)]
    where += [(f"the {stratum.name} third", stratum.perplexity_ratio) for stratum in quality.strata]
    where.append(("the last quarter of each text", quality.late.perplexity_ratio))
    for name, ratio in where:
        if not ratio.value <= bounds.perplexity_ratio:
            yield (
                f"Its perplexity at {name} is {ratio.value:.4f} × the base's, above --max-perplexity "
                f"{bounds.perplexity_ratio:g}."
            )


def _summary(base: str, reference: TextScorer, found: Sequence[Judged]) -> Table:
    some = found[0].quality
    table = Table(
        title=f"{base} in float32: perplexity {_shown(some.reference_perplexity, 4)} over {some.positions:,} positions "
        f"of {some.texts} texts"
    )
    for heading in (
        "candidate",
        "weights",
        "MiB",
        "perplexity, ratio",
        "KL, nats",
        "its 99%",
        "same top",
        "where clear",
    ):
        table.add_column(heading, justify="left" if heading in ("candidate", "weights") else "right")
    table.add_column("change of p", justify="right")
    for judged in found:
        quality = judged.quality
        table.add_row(
            judged.name,
            judged.weights,
            f"{judged.weight_bytes / 2**20:,.1f}",
            _shown(quality.perplexity_ratio, 4),
            _shown(quality.kl, 5),
            f"{quality.kl_tail:.4f}",
            _shown(quality.same_top, 4),
            f"{quality.clear_same_top:.4f}",
            f"{quality.probability_change:.4f}",
        )
    return table


def _by_difficulty(found: Sequence[Judged]) -> Table:
    table = Table(title="by how sure the base is of what follows, in thirds; and the last quarter of each text")
    for heading in ("candidate", "where", "positions", "perplexity, ratio", "KL, nats", "same top"):
        table.add_column(heading, justify="left" if heading in ("candidate", "where") else "right")
    for judged in found:
        for stratum in (*judged.quality.strata, judged.quality.late):
            ratio, kl, same = _shown(stratum.perplexity_ratio, 4), _shown(stratum.kl, 5), _shown(stratum.same_top, 4)
            table.add_row(judged.name, stratum.name, f"{stratum.positions:,}", ratio, kl, same)
    return table


def _as_served(base: str, own: Served, found: Sequence[Judged]) -> Table:
    table = Table(title="as served: right answers, and tokens a second")
    table.add_column("model")
    for task in own.right:
        table.add_column(task, justify="right")
    for figures in own.speed:
        table.add_column(f"prefill, batch {figures.batch_size}", justify="right")
        table.add_column(f"decode, batch {figures.batch_size}", justify="right")
    for name, served in [(base, own), *((judged.name, judged.served) for judged in found)]:
        assert served is not None
        cells = [f"{sum(right)} of {len(right)}" for right in served.right.values()]
        for figures in served.speed:
            cells += [f"{figures.prefill_tokens_per_second:,.0f}", as_text(figures.decode_tokens_per_second, ",.1f")]
        table.add_row(name, *cells)
    return table


def _shown(estimate: Estimate, digits: int) -> str:
    margin = "" if estimate.margin is None else f" ± {estimate.margin:.{digits}f}"
    return f"{estimate.value:.{digits}f}{margin}"
