"""Put the trained pair into the package, each with its model card.

    python -m training.bundle

The cards' figures come from build/training/evaluation.json and from the logs of both runs.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.bundled.corpus.lexicon import load_lexicon
from penstock.bundled.corpus.patterns import load_patterns
from penstock.bundled.corpus.wordings import load_wordings
from training.data import load_corpus
from training.export import load_model, weights_fingerprint
from training.recipe import BUNDLE, DRAFT_RECIPE, TARGET_RECIPE, WORK, Recipe

CARDS = Path(__file__).with_name("cards")
LOSS_POINTS = 12


def percent(value: float) -> str:
    """A fraction as people read it."""
    return f"{100 * value:.1f}%"


def table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]] | list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def loss_curve(recipe: Recipe) -> str:
    """Training loss at a dozen steps, from near the first to the last."""
    log = [json.loads(line) for line in (WORK / recipe.name / "log.jsonl").read_text().splitlines()]
    chosen = [log[round(index * (len(log) - 1) / (LOSS_POINTS - 1))] for index in range(LOSS_POINTS)]
    return table(("step", "loss"), [(str(point["step"]), f"{point['loss']:.3f}") for point in chosen])


def poem_table(figures: dict[str, Any]) -> str:
    """What the evaluation says of answers, one line a figure."""
    medium, hard, known = figures["poems"], figures["poems_hard"], figures["poems_known"]
    rows = [
        ("poems of exactly 5-7-5 syllables", percent(medium["haiku_575"]), percent(hard["haiku_575"])),
        ("poems that name the topic word for word", percent(medium["haiku_on_topic"]), percent(hard["haiku_on_topic"])),
        ("different poems among them", percent(medium["haiku_distinct"]), percent(hard["haiku_distinct"])),
    ]
    rows += [
        ("poems on topics of the training data that stand there word for word", percent(known["haiku_verbatim"]), ""),
        ("poems on topics of the training data of exactly 5-7-5 syllables", percent(known["haiku_575"]), ""),
        ("JSON answers with the right keys and types", percent(figures["json"]["json_valid"]), ""),
        ("JSON answers whose poem is 5-7-5", percent(figures["json"]["json_haiku_575"]), ""),
        ("exact sums of numbers up to 50, pairs never asked in training", percent(figures["facts"]["sum_exact"]), ""),
        ("lists said back exactly", percent(figures["facts"]["echo_exact"]), ""),
        ("right function called with the right argument", percent(figures["facts"]["call_exact"]), ""),
        ("a line repeated exactly", "", percent(figures["facts"]["repeat_line_exact"])),
        ("a poem repeated exactly", "", percent(figures["facts"]["repeat_poem_exact"])),
        ("a poem with one word replaced exactly", "", percent(figures["facts"]["replace_exact"])),
    ]
    return table(("", "single requests", "conversations, half on words never seen"), rows)


def loss_tables(figures: dict[str, Any], name: str) -> str:
    """Validation loss by stratum and by position."""
    loss = figures["loss"][name]
    strata = table(("held-out text", "loss"), [(key, f"{loss[key]:.3f}") for key in ("easy", "medium", "hard")])
    bands = table(("position", "loss"), [(key, f"{value:.3f}") for key, value in loss["by_position"].items()])
    return f"{strata}\n\n{bands}"


def acceptance_table(figures: dict[str, Any]) -> str:
    """The draft's acceptance by stratum and temperature."""
    rows = [
        (stratum, *(percent(values[temperature]) for temperature in ("0", "0.7", "1")))
        for stratum, values in figures["acceptance"].items()
    ]
    return table(("held-out text", "temperature 0", "0.7", "1"), rows)


def card(recipe: Recipe, figures: dict[str, Any]) -> str:
    """The model card of one of the pair, from its template in cards/."""
    corpus, lexicon, wordings = load_corpus(), load_lexicon(), load_wordings()
    run = json.loads((WORK / recipe.name / "run.json").read_text())
    parameters = sum(p.numel() for p in load_model(WORK / recipe.name / "model", recipe.shape).parameters())
    shape = recipe.shape
    values = {
        "parameters": f"{parameters / 1e6:.2f} million",
        "shape": f"{shape.layers} layers, width {shape.width}, {shape.heads} heads (key-value: {shape.kv_heads}), "
        f"MLP {shape.intermediate}, vocabulary {shape.vocabulary:,}, context {shape.context:,}, tied embeddings",
        "conversations": f"{len(corpus.starts):,}",
        "corpus_tokens": f"{len(corpus.tokens) / 1e6:.1f} million",
        "poems": f"{len(corpus.poems):,}",
        "words": f"{len(lexicon.syllables):,}",
        "patterns": f"{len(load_patterns()):,}",
        "wordings": f"{sum(map(len, wordings.values())):,}",
        "topics": f"{len(lexicon.topics):,}",
        "heldout_topics": f"{len(lexicon.heldout_topics):,}",
        "phases": "; ".join(
            f"{percent(phase.share)} in rows of {phase.positions:,} tokens"
            + (f", half of that conversations of more than {phase.short}" if phase.short else "")
            for phase in recipe.phases
        ),
        "step_tokens": f"{recipe.phases[0].positions * recipe.phases[0].rows:,}",
        "decay": percent(recipe.decay_share),
        "hint_weight": f"{recipe.hint_weight:g}",
        "heldout_wordings": f"{sum(len(lines) for name, lines in wordings.items() if name.endswith('.heldout')):,}",
        "tokens": f"{run['tokens'] / 1e6:.1f} million",
        "steps": f"{run['steps']:,}",
        "minutes": f"{run['seconds'] / 60:.0f}",
        "device": run["device"],
        "torch": run["torch"],
        "sampling": ", ".join(f"{key} {value}" for key, value in figures["sampling"].items()),
        "prompts": str(figures["prompts"]),
        "loss_curve": loss_curve(recipe),
        "losses": loss_tables(figures, recipe.name),
        "poem_figures": poem_table(figures),
        "acceptance": acceptance_table(figures),
        "samples": "\n\n".join(f"> {prompt}\n\n```\n{answer}\n```" for prompt, answer in figures["samples"]),
    }
    text = (CARDS / f"{recipe.name}.md").read_text()
    return fill(text, values)


def fill(template: str, values: Mapping[str, str]) -> str:
    """The template with `{{name}}` replaced. Raises KeyError for a name that has no value."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def main() -> None:
    """Copy both directories and write both cards."""
    figures = json.loads((WORK / "evaluation.json").read_text())
    trained = [weights_fingerprint(WORK / recipe.name / "model") for recipe in (TARGET_RECIPE, DRAFT_RECIPE)]
    if figures["weights"] != trained:
        raise SystemExit("build/training/evaluation.json is about other models; run python -m training.evaluate first.")
    for recipe in (TARGET_RECIPE, DRAFT_RECIPE):
        directory = BUNDLE / recipe.name
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(WORK / recipe.name / "model", directory)
        (directory / "README.md").write_text(card(recipe, figures))
    size = sum(file.stat().st_size for file in BUNDLE.rglob("*") if file.is_file())
    print(f"{BUNDLE}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
