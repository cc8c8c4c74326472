"""What a model is like when it is served: its answers to questions, and its speed, for `penstock evaluate`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.bench.answers import judged_answers
from penstock.bench.engine import EngineFigures, measure_engine
from penstock.bundled.corpus.turns import Turn
from penstock.core.errors import ConfigurationError
from penstock.core.sampling import SamplingParams
from penstock.llm import LLM, chat_encoder

_BATCH_SIZES = (1, 16)
_INPUT_LEN, _OUTPUT_LEN, _REPEAT = 128, 32, 3
_MOST_TOKENS = 160


@dataclass(frozen=True, slots=True)
class Asked:
    """What is wanted: `answers` answers for each task, and the speed."""

    answers: int
    speed: bool


@dataclass(frozen=True, slots=True)
class Served:
    """Figures of one model.

    Attributes:
        right: by task, which answers were right; empty where nothing was asked.
        speed: at each batch size; empty where it was not measured.
    """

    right: dict[str, tuple[bool, ...]]
    speed: tuple[EngineFigures, ...]


def served_figures(model: str, options: dict[str, Any], asked: Asked) -> Served:
    """Measure the speed of a model with these options, and have it answer questions, greedily.

    Raises ConfigurationError where it has no tokenizer to be asked in, StartupError where it cannot be loaded.
    """
    llm = LLM(model, **{**options, "max_num_seqs": max(*_BATCH_SIZES, asked.answers)})
    speed: tuple[EngineFigures, ...] = ()
    if asked.speed:
        speed = tuple(measure_engine(llm, _BATCH_SIZES, _INPUT_LEN, _OUTPUT_LEN, llm.vocab_size, _REPEAT))
    if not asked.answers:
        return Served({}, speed)
    if llm.tokenizer is None:
        raise ConfigurationError(f"{model} has no tokenizer, so it cannot be asked anything; leave --answers out.")
    encoder = chat_encoder(llm.tokenizer)

    def answer(turns: Sequence[Turn]) -> list[str]:
        prompts = [{"prompt_token_ids": turn.prompt_ids(encoder.encode)} for turn in turns]
        done = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=_MOST_TOKENS))
        return [each.text for each in done]

    return Served(judged_answers(answer, asked.answers), speed)
