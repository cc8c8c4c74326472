"""`penstock quantize`: a checkpoint with smaller weights, for Penstock and for others."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.assembly.prepare import prepare
from penstock.cli.files import read_text
from penstock.compression.checks import check, left_out
from penstock.compression.inputs import Rare
from penstock.compression.projections import matrices
from penstock.compression.quantize import NO_TEXTS, Done, Measured, Texts, quantize_model
from penstock.compression.reach import Reached, mixtures
from penstock.compression.rewriting import remarks
from penstock.compression.scoring import CALIBRATION_SEED, conversations, encoded, messages, windows
from penstock.configuration.options import EngineOptions
from penstock.configuration.ranks import check_alone
from penstock.core.errors import ConfigurationError
from penstock.kernels.processor import this_processor
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.gguf import is_gguf
from penstock.models.declaration import ModelDeclaration
from penstock.quantization.recipe import Recipe

DEFAULT = "default"
_SAMPLES, _SAMPLE_LEN = 128, 512
# How many times as many texts are taken at most, where experts lack rows.
_FURTHER = 4
# Experts, and tensors that are left out, that a line names.
_SHOWN, _FEW = 16, 3


@dataclass(frozen=True, slots=True)
class Source:
    """Where calibration texts come from, as asked for."""

    text: str | None
    samples: int | None
    sample_len: int | None


def run_quantize(model: str, recipe: Recipe, source: Source, out: Path, threads: int | None) -> None:
    """Write the checkpoint, and tell of each block. Raises ConfigurationError, StartupError."""
    options = EngineOptions.of(model=model, threads=threads, speculative="off", quantization="none")
    check_alone(options, "penstock quantize")
    prepared = prepare(options, api_beside=False)
    processor = this_processor()
    processor.use(prepared.config.threads, prepared.config.instruction_set)
    checkpoint, declaration = prepared.checkpoint, prepared.declaration
    if is_gguf(checkpoint.path):
        raise ConfigurationError(f"{model} is a GGUF file; give the checkpoint that it was made from.")
    if checkpoint.quantization:
        raise ConfigurationError(f"{model} is quantized already; give the checkpoint that it was made from.")
    check(checkpoint, declaration, recipe)
    texts = NO_TEXTS
    if recipe.calibrated:
        texts = _texts(checkpoint, declaration, source)
    else:
        given = {"calibration": source.text, "samples": source.samples, "sample-len": source.sample_len}
        for name, value in given.items():
            if value is not None:
                raise ConfigurationError(f"--method {recipe.method} needs no texts; leave --{name} out.")
    console = Console()
    if left := left_out(checkpoint, declaration):
        named = ", ".join(left[:_FEW]) + (" …" if len(left) > _FEW else "")
        _say(console, f"Left out, since the model's outputs do not depend on it: {named}")
    for remark in remarks(declaration):
        _say(console, remark)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        blocks = declaration.decoder.blocks
        projections = sum(len(matrices(block)) for block in blocks)
        measuring = progress.add_task("widths", total=projections, visible=recipe.method == "mixed")
        writing = progress.add_task("blocks", total=len(blocks))
        rare: list[Rare] = []
        for event in quantize_model(checkpoint, declaration, recipe, texts, out, processor):
            for line in _lines(event, recipe, len(texts.all)):
                _say(progress.console, line)
            if isinstance(event, Done):
                rare += event.rare
            if not isinstance(event, Reached):
                progress.advance(measuring if isinstance(event, Measured) else writing)
    if rare:
        _say(console, _summary(rare))
    compared = f"; compare it with `penstock evaluate {model} {out}`" if declaration.decoder.generates else ""
    _say(console, f"Written: {out}{compared}.")


def _say(console: Console, line: str) -> None:
    """Print a line as it is."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def _texts(checkpoint: Checkpoint, declaration: ModelDeclaration, source: Source) -> Texts:
    """Token ids of the calibration texts."""
    text, samples, longest = source.text or DEFAULT, source.samples or _SAMPLES, source.sample_len or _SAMPLE_LEN
    if not declaration.decoder.generates and source.sample_len is None:
        longest = min(longest, declaration.max_position_embeddings)
    if longest > declaration.max_position_embeddings:
        raise ConfigurationError(
            f"--sample-len {longest} is beyond the {declaration.max_position_embeddings} positions that the model was "
            "made for."
        )
    most = samples * _FURTHER if mixtures(declaration.decoder.blocks) else samples
    if not declaration.decoder.generates:
        said = messages(samples, seed=CALIBRATION_SEED) if text == DEFAULT else _lines_of(Path(text))
        return Texts(encoded(checkpoint.path, declaration.vocab_size, said, longest, samples))
    if text == DEFAULT:
        found = conversations(checkpoint.path, declaration.vocab_size, longest, most, seed=CALIBRATION_SEED)
    else:
        read = read_text(Path(text), "--calibration")
        found = windows(checkpoint.path, declaration.vocab_size, read, longest, most)
    if not found:
        raise ConfigurationError(
            f"There are no calibration texts in {text} with --sample-len {longest}; give longer ones."
        )
    ids = [each.ids for each in found]
    return Texts(ids[:samples], ids[samples:])


def _lines_of(file: Path) -> Iterator[str]:
    """The lines of a file, each of them a text for an encoder."""
    return (line for line in read_text(file, "--calibration").splitlines() if line.strip())


def _lines(event: Measured | Reached | Done, recipe: Recipe, most: int) -> list[str]:
    """What is said of it; `most` is the number of texts there are."""
    if isinstance(event, Measured):
        losses = ", ".join(f"{bits} bits {loss:.2e}" for bits, loss in event.sensitivity.loss.items())
        return [f"{event.name.removesuffix('.weight')} alone: KL with {losses}"]
    if isinstance(event, Reached):
        return [_reached(event, most)]
    rare = [_rare(event.block, each) for each in event.rare]
    if event.resumed:
        return [f"block {event.block}: was there already", *rare]
    of = "outputs" if recipe.calibrated else "weights"
    errors = []
    for name, error in event.error.items():
        stored = f" ({event.stored[name]})" if name in event.stored else ""
        errors.append(f"{_short(name)}{stored} {error:.2e}")
    return [f"block {event.block}: relative error of {of}: {', '.join(errors)}", *rare]


def _reached(event: Reached, most: int) -> str:
    """How far texts reach, and what follows of that."""
    if not event.few:
        return f"{event.texts} texts: all {event.experts} experts get enough rows; the least {event.least}"
    if not event.further:
        onward = "the last of these texts had no row for any of them, so that no more are taken"
    else:
        onward = "going on with more" if event.texts < most else "there are no more"
    few = f"{event.few} of {event.experts} experts get too few rows, the least {event.least}"
    return f"{event.texts} texts: {few}; {onward}"


def _rare(block: int, rare: Rare) -> str:
    """Which experts are rounded without calibration, and why."""
    named = ", ".join(map(str, rare.experts[:_SHOWN])) + (" …" if len(rare.experts) > _SHOWN else "")
    return (
        f"block {block}: {_short(rare.projection)} of {len(rare.experts)} of {rare.count} experts ({named}) is rounded "
        f"to the nearest: they got fewer than {rare.needed} rows, the least {rare.least}"
    )


def _short(name: str) -> str:
    """A projection's name within its block: `down_proj`, or `experts.down_proj`."""
    *before, last, _ = name.split(".")
    return f"{before[-1]}.{last}" if before and "expert" in before[-1] else last


def _summary(rare: list[Rare]) -> str:
    count = sum(len(each.experts) for each in rare)
    return (
        f"{count} projections of experts are rounded to the nearest, since the texts had too few rows for them; more "
        "--samples, or texts like those that the model is for (--calibration), may reach them."
    )
