"""`penstock quantize`: a checkpoint with smaller weights, for Penstock and for others."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.assembly.prepare import prepare
from penstock.cli.files import read_text
from penstock.compression.block import matrices
from penstock.compression.quantize import Done, Measured, check, quantize_model
from penstock.compression.scoring import CALIBRATION_SEED, conversations, windows
from penstock.configuration.options import EngineOptions
from penstock.core.errors import ConfigurationError
from penstock.kernels.processor import this_processor
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.gguf import is_gguf
from penstock.models.declaration import ModelDeclaration
from penstock.quantization.recipe import Recipe

DEFAULT = "default"
_SAMPLES, _SAMPLE_LEN = 128, 512


@dataclass(frozen=True, slots=True)
class Source:
    """Where calibration texts come from, as asked for."""

    text: str | None
    samples: int | None
    sample_len: int | None


def run_quantize(model: str, recipe: Recipe, source: Source, out: Path, threads: int | None) -> None:
    """Write the checkpoint, and tell of each block. Raises ConfigurationError, StartupError."""
    options = EngineOptions.of(model=model, threads=threads, speculative="off", quantization="none")
    prepared = prepare(options, api_beside=False)
    processor = this_processor()
    processor.use(prepared.config.threads, prepared.config.instruction_set)
    checkpoint, declaration = prepared.checkpoint, prepared.declaration
    if is_gguf(checkpoint.path):
        raise ConfigurationError(f"{model} is a GGUF file; give the checkpoint that it was made from.")
    if checkpoint.quantization:
        raise ConfigurationError(f"{model} is quantized already; give the checkpoint that it was made from.")
    check(checkpoint, declaration, recipe)
    texts: list[list[int]] = []
    if recipe.calibrated:
        texts = _texts(checkpoint, declaration, source)
    else:
        given = {"calibration": source.text, "samples": source.samples, "sample-len": source.sample_len}
        for name, value in given.items():
            if value is not None:
                raise ConfigurationError(f"--method {recipe.method} needs no texts; leave --{name} out.")
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        blocks = declaration.decoder.blocks
        projections = sum(len(matrices(block)) for block in blocks)
        measuring = progress.add_task("widths", total=projections, visible=recipe.method == "mixed")
        writing = progress.add_task("blocks", total=len(blocks))
        for event in quantize_model(checkpoint, declaration, recipe, texts, out, processor):
            progress.console.print(_line(event, recipe), highlight=False, soft_wrap=True)
            progress.advance(measuring if isinstance(event, Measured) else writing)
    console.print(
        f"Written: {out}; compare it with `penstock evaluate {model} {out}`.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _texts(checkpoint: Checkpoint, declaration: ModelDeclaration, source: Source) -> list[list[int]]:
    """Token ids of the calibration texts."""
    text, samples, longest = source.text or DEFAULT, source.samples or _SAMPLES, source.sample_len or _SAMPLE_LEN
    if longest > declaration.max_position_embeddings:
        raise ConfigurationError(
            f"--sample-len {longest} is beyond the {declaration.max_position_embeddings} positions that the model was "
            "made for."
        )
    if text == DEFAULT:
        found = conversations(checkpoint.path, declaration.vocab_size, longest, samples, seed=CALIBRATION_SEED)
    else:
        read = read_text(Path(text), "--calibration")
        found = windows(checkpoint.path, declaration.vocab_size, read, longest, samples)
    if not found:
        raise ConfigurationError(
            f"There are no calibration texts in {text} with --sample-len {longest}; give longer ones."
        )
    return [each.ids for each in found]


def _line(event: Measured | Done, recipe: Recipe) -> str:
    """What is said of it."""
    if isinstance(event, Measured):
        losses = ", ".join(f"{bits} bits {loss:.2e}" for bits, loss in event.sensitivity.loss.items())
        return f"{event.name.removesuffix('.weight')} alone: KL with {losses}"
    if event.resumed:
        return f"block {event.block}: was there already"
    of = "outputs" if recipe.calibrated else "weights"
    errors = []
    for name, error in event.error.items():
        stored = f" ({event.stored[name]})" if name in event.stored else ""
        errors.append(f"{name.split('.')[-2]}{stored} {error:.2e}")
    return f"block {event.block}: relative error of {of}: {', '.join(errors)}"
