"""`penstock quantize`: a checkpoint with smaller weights, for Penstock and for others."""

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.assembly.prepare import prepare
from penstock.assembly.quantize import METHODS, Recipe, check, quantize_model
from penstock.assembly.scoring import CALIBRATION_SEED, conversations, windows
from penstock.cli.files import read_text
from penstock.core.config import EngineOptions
from penstock.core.errors import ConfigurationError
from penstock.loading.gguf import is_gguf
from penstock.quantization.layouts import LAYOUTS

DEFAULT = "default"


def run_quantize(
    model: str, recipe: Recipe, calibration: str, samples: int, sample_len: int, out: Path, threads: int | None
) -> None:
    """Write the checkpoint, and tell of each block. Raises ConfigurationError, StartupError."""
    if recipe.method not in METHODS:
        raise ConfigurationError(f"--method {recipe.method} is not one of {', '.join(METHODS)}.")
    if recipe.layout not in LAYOUTS:
        raise ConfigurationError(f"--format {recipe.layout} is not one of {', '.join(LAYOUTS)}.")
    options = EngineOptions(model=model, threads=threads, speculative="off", quantization="none")
    prepared = prepare(options, api_beside=False)
    checkpoint, declaration = prepared.checkpoint, prepared.declaration
    if is_gguf(checkpoint.path):
        raise ConfigurationError(f"{model} is a GGUF file; give the checkpoint that it was made from.")
    if checkpoint.quantization:
        raise ConfigurationError(f"{model} is quantized already; give the checkpoint that it was made from.")
    check(checkpoint, declaration, recipe)
    if sample_len > declaration.max_position_embeddings:
        raise ConfigurationError(
            f"--sample-len {sample_len} is beyond the {declaration.max_position_embeddings} positions that {model} was "
            "made for."
        )
    texts: list[list[int]] = []
    if recipe.method != "rtn":
        if calibration == DEFAULT:
            found = conversations(checkpoint.path, declaration.vocab_size, sample_len, samples, seed=CALIBRATION_SEED)
        else:
            text = read_text(Path(calibration), "--calibration")
            found = windows(checkpoint.path, declaration.vocab_size, text, sample_len, samples)
        texts = [text.ids for text in found]
        if not texts:
            raise ConfigurationError(
                f"There are no calibration texts in {calibration} with --sample-len {sample_len}; give longer ones."
            )
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("blocks", total=len(declaration.decoder.blocks))
        for done in quantize_model(checkpoint, declaration, recipe, texts, out):
            errors = ", ".join(f"{name.split('.')[-2]} {error:.2e}" for name, error in done.error.items())
            what = "was there already" if done.resumed else f"relative error of {_of(recipe)}: {errors}"
            progress.console.print(f"block {done.block}: {what}", highlight=False, soft_wrap=True)
            progress.advance(task)
    console.print(
        f"Written: {out}; compare it with `penstock evaluate {model} {out}`.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _of(recipe: Recipe) -> str:
    return "weights" if recipe.method == "rtn" else "outputs"
