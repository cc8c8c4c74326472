"""What the pair can do, on prompts whose topics and wordings training never saw.

    python -m training.evaluate [--bundled] [--prompts N]

Answers are sampled by Penstock with the model's own generation_config.json; losses and acceptance are computed from the
exported weights in float32.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor

from penstock import LLM, SamplingParams
from penstock.bundled.corpus.checks import haiku_json, is_haiku, mentions, poem_lines, same_last_number
from penstock.bundled.corpus.dialogue import Conversation
from penstock.bundled.corpus.generator import STRATA, Stratum, held_out, known_topic, tool_request, training
from penstock.bundled.corpus.turns import POEM_TASKS, Turn, first_turns
from penstock.llm import chat_encoder
from training.data import learned_positions, load_corpus, poem_hash, render
from training.export import load_model, weights_fingerprint, write_json
from training.model import Decoder
from training.recipe import BUNDLE, CONTEXT, DRAFT, DRAFT_RECIPE, SEED, TARGET, TARGET_RECIPE, WORK

MOST_TOKENS = 160
ACCEPTANCE_TEMPERATURES = (0.0, 0.7, 1.0)
POSITION_BANDS = ((0, 64), (64, 128), (128, 256), (256, 512), (512, 1024), (1024, 2048))


def held_out_turns(stratum: Stratum, tasks: frozenset[str] | None, count: int) -> list[Turn]:
    """The first `count` turns of these tasks (of all, where None) in a stratum."""
    return first_turns(partial(held_out, stratum), tasks, count)


class Pair:
    """Both models, in Penstock and as plain decoders."""

    def __init__(self, target: Path, draft: Path) -> None:
        self.llm = LLM(str(target), max_num_seqs=64)
        assert self.llm.tokenizer is not None
        self.tokenizer = self.llm.tokenizer
        self.encoder = chat_encoder(self.tokenizer)
        self.models: dict[str, Decoder] = {
            TARGET_RECIPE.name: load_model(target, TARGET),
            DRAFT_RECIPE.name: load_model(draft, DRAFT),
        }
        recommended = json.loads((target / "generation_config.json").read_text())
        self.sampling = {name: recommended[name] for name in ("temperature", "top_p", "top_k") if name in recommended}

    def answer(self, turns: Sequence[Turn], **sampling: float) -> tuple[list[list[int]], list[str], list[list[int]]]:
        """Prompts, texts and token ids of the target's answers."""
        prompts = [turn.prompt_ids(self.encoder.encode) for turn in turns]
        params = [
            SamplingParams(max_tokens=MOST_TOKENS, seed=index, **(sampling or self.sampling))
            for index in range(len(turns))
        ]
        outputs = self.llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)
        return prompts, [output.text for output in outputs], [list(output.token_ids) for output in outputs]


def share(values: Sequence[bool]) -> float:
    """How many of them are true, as a fraction."""
    return sum(values) / len(values)


def poem_figures(pair: Pair, turns: Sequence[Turn], known: Collection[int]) -> dict[str, float]:
    """Form, topic and novelty of poems; `known` are the hashes of those that training saw."""
    _, texts, _ = pair.answer(turns)
    return judge_poems([poem_lines(text) for text in texts], [turn.topic for turn in turns], known)


def judge_poems(
    poems: Sequence[tuple[str, ...] | None], topics: Sequence[str | None], known: Collection[int]
) -> dict[str, float]:
    """Shares of all answers: one that is no poem of three lines counts as wrong."""
    written = [poem for poem in poems if poem is not None]
    mentioned = [
        poem is not None and topic is not None and mentions("\n".join(poem), topic)
        for poem, topic in zip(poems, topics, strict=True)
    ]
    return {
        "haiku_575": share([is_haiku(poem) for poem in poems]),
        "haiku_on_topic": share(mentioned),
        "haiku_verbatim": sum(poem_hash("\n".join(poem)) in known for poem in written) / len(poems),
        "haiku_distinct": len(set(written)) / len(poems),
    }


def samples(pair: Pair, count: int = 6) -> list[tuple[str, str]]:
    """The first held-out requests for a poem, with their answers."""
    turns = held_out_turns("medium", frozenset(("haiku", "titled", "json")), count)
    _, texts, _ = pair.answer(turns)
    return [(turn.before[-1]["content"], text) for turn, text in zip(turns, texts, strict=True)]


def json_figures(pair: Pair, count: int) -> dict[str, float]:
    """Answers that are JSON objects with the right keys, and the poems in them."""
    turns = held_out_turns("medium", frozenset(("json",)), count)
    _, texts, _ = pair.answer(turns)
    values = [haiku_json(text) for text in texts]
    return {
        "json_valid": share([value is not None for value in values]),
        "json_haiku_575": share([value is not None and is_haiku(value.lines) for value in values]),
    }


def fact_figures(pair: Pair, count: int) -> dict[str, float]:
    """Sums of pairs never asked in training; other exact answers by what was asked; calls of the right function."""
    turns = held_out_turns("easy", frozenset(("sum",)), count)
    _, texts, _ = pair.answer(turns)
    sums = [same_last_number(turn.expected, text) for turn, text in zip(turns, texts, strict=True)]
    figures = {"sum_exact": share(sums)}
    quotes: tuple[tuple[Stratum, str], ...] = (
        ("easy", "echo"),
        ("hard", "repeat_line"),
        ("hard", "repeat_poem"),
        ("hard", "replace"),
    )
    for stratum, task in quotes:
        turns = held_out_turns(stratum, frozenset((task,)), count // 2)
        _, texts, _ = pair.answer(turns)
        figures[f"{task}_exact"] = share(
            [turn.expected == text.strip() for turn, text in zip(turns, texts, strict=True)]
        )
    turns = first_turns(tool_request, frozenset(("tool_call",)), count // 2)
    _, texts, _ = pair.answer(turns)
    figures["call_exact"] = share([called(text) == turn.calls for turn, text in zip(turns, texts, strict=True)])
    return figures


def called(text: str) -> list[dict[str, Any]]:
    """The calls in an answer that is nothing but calls; none where one is malformed or other text is around them."""
    found = re.fullmatch(r"(<tool_call>.*?</tool_call>\s*)+", text.strip())
    try:
        return [json.loads(call) for call in re.findall(r"<tool_call>(.*?)</tool_call>", text)] if found else []
    except json.JSONDecodeError:
        return []


@torch.inference_mode()
def _logits(model: Decoder, ids: Sequence[int], first: int) -> Tensor:
    """Logits that the tokens from position `first` on were drawn from, [len(ids) - first, vocabulary]."""
    hidden = model.hidden(torch.tensor([list(ids[:-1])]))[0, first - 1 :]
    return model.logits(hidden)


def token_acceptance(target: Tensor, draft: Tensor, temperature: float) -> Tensor:
    """The probability of each token's acceptance, [n], from logits [n, vocabulary].

    At 0 it is 1 where both have the same most likely token; above, sum(min(p, q)), the probability that rejection
    sampling accepts (Leviathan et al., 2023, theorem 3.5).
    """
    if temperature == 0:
        return (target.argmax(-1) == draft.argmax(-1)).double()
    p, q = (F.softmax(logits.double() / temperature, dim=-1) for logits in (target, draft))
    return torch.minimum(p, q).sum(-1)


def acceptance(pair: Pair, stratum: Stratum, count: int) -> dict[str, float]:
    """The draft's mean acceptance a token on what the target says, by temperature."""
    turns = held_out_turns(stratum, None, count)
    names = (TARGET_RECIPE.name, DRAFT_RECIPE.name)
    figures = {}
    for temperature in ACCEPTANCE_TEMPERATURES:
        prompts, _, outputs = pair.answer(turns, temperature=temperature)
        accepted = []
        for prompt, output in zip(prompts, outputs, strict=True):
            target, draft = (_logits(pair.models[name], [*prompt, *output], len(prompt)) for name in names)
            accepted.append(token_acceptance(target, draft, temperature))
        figures[f"{temperature:g}"] = float(torch.cat(accepted).mean())
    return figures


@torch.inference_mode()
def losses(pair: Pair, name: str, conversations: Sequence[Conversation]) -> NDArray[np.float64]:
    """Loss in nats of each learned token, with its position: [n, 2]."""
    assistant, end = (pair.tokenizer.token_id(token) for token in ("<|assistant|>", "<|end|>"))
    assert assistant is not None and end is not None
    found = []
    for conversation in conversations:
        ids = pair.tokenizer.encode(render(conversation), add_special_tokens=False)[: CONTEXT + 1]
        learned = torch.from_numpy(learned_positions(np.array(ids, dtype=np.uint16), assistant, end))
        model = pair.models[name]
        hidden = model.hidden(torch.tensor([ids[:-1]]))[0]
        each = F.cross_entropy(model.logits(hidden), torch.tensor(ids[1:]), reduction="none")
        positions = torch.arange(len(ids) - 1)[learned[1:]]
        found.append(torch.stack((positions.double(), each[learned[1:]].double()), dim=1))
    return torch.cat(found).numpy()


def loss_figures(pair: Pair, count: int) -> dict[str, Any]:
    """Validation loss of both by stratum, and by position in long conversations of topics that training knows."""
    figures: dict[str, Any] = {}
    # Another seed than training's: conversations that it did not have.
    long = [training(SEED + 2, index, 1.0) for index in range(max(8, count // 20))]
    for name in pair.models:
        figures[name] = {
            stratum: float(losses(pair, name, [held_out(stratum, index) for index in range(count)])[:, 1].mean())
            for stratum in STRATA
        }
        by_position = losses(pair, name, long)
        bands = {}
        for first, last in POSITION_BANDS:
            inside = (by_position[:, 0] >= first) & (by_position[:, 0] < last)
            bands[f"{first}-{last}"] = float(by_position[inside, 1].mean())
        figures[name]["by_position"] = bands
    return figures


def evaluate(pair: Pair, count: int) -> dict[str, Any]:
    """All figures; `count` prompts for each."""
    console = Console(stderr=True)
    figures: dict[str, Any] = {"prompts": count, "sampling": pair.sampling}
    with console.status("losses"):
        figures["loss"] = loss_figures(pair, count)
    with console.status("poems"):
        figures["samples"] = samples(pair)
        known = frozenset(load_corpus().poems.tolist())
        figures["poems"] = poem_figures(pair, held_out_turns("medium", POEM_TASKS, count), known)
        figures["poems_hard"] = poem_figures(pair, held_out_turns("hard", POEM_TASKS, count), known)
        # Poems on held-out topics can't stand in the training data, which has none; on known topics they can.
        figures["poems_known"] = poem_figures(pair, first_turns(known_topic, POEM_TASKS, count), known)
    with console.status("answers"):
        figures["json"] = json_figures(pair, count)
        figures["facts"] = fact_figures(pair, count)
    with console.status("acceptance"):
        each = {stratum: acceptance(pair, stratum, count) for stratum in STRATA}
        each["all"] = {key: float(np.mean([each[stratum][key] for stratum in STRATA])) for key in each["easy"]}
        figures["acceptance"] = each
    return figures


def show(figures: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Names and values, nested names joined by points."""
    for name, value in figures.items():
        if name in ("samples", "weights"):
            continue
        if isinstance(value, dict):
            yield from show(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", f"{value:.4f}" if isinstance(value, float) else str(value)


def main() -> None:
    """Print all figures; of models just trained write them to build/training/evaluation.json as well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundled", action="store_true", help="the models in the package, not those just trained")
    parser.add_argument("--prompts", type=int, default=400, help="prompts for each figure")
    options = parser.parse_args()
    names = (TARGET_RECIPE.name, DRAFT_RECIPE.name)
    directories = [BUNDLE / name if options.bundled else WORK / name / "model" for name in names]
    figures = evaluate(Pair(*directories), options.prompts)
    if not options.bundled:
        # The model cards are made from this file, and only of the models that it is about.
        figures["weights"] = [weights_fingerprint(directory) for directory in directories]
        write_json(WORK / "evaluation.json", figures)
    table = Table("figure", "value")
    for name, value in show(figures):
        table.add_row(name, value)
    Console().print(table)


if __name__ == "__main__":
    main()
