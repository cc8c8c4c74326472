"""Which of several models a request gets that names none: the one that is made for what its endpoint does."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from penstock.api import tasks
from penstock.engine.interface import ModelInfo

Task = Literal["generate", "converse", "translate", "embed", "score", "classify"]

# What a model has to do for an endpoint; all that are not here can be asked of any.
TASKS: Mapping[str, Task] = MappingProxyType(
    {
        "/v1/completions": "generate",
        "/v1/chat/completions": "converse",
        "/v1/responses": "converse",
        "/v1/responses/input_tokens": "converse",
        "/v1/messages": "converse",
        "/v1/messages/count_tokens": "converse",
        "/translate": "translate",
        "/languages": "translate",
        **dict.fromkeys(("/v1/embeddings", "/embed"), "embed"),
        **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score"), "score"),
        **dict.fromkeys(("/v1/classify", "/classify", "/predict"), "classify"),
    }
)
_CAN: Mapping[Task, Callable[[ModelInfo], bool]] = MappingProxyType(
    {
        "generate": tasks.generates,
        "converse": tasks.converses,
        "translate": tasks.translates,
        "embed": tasks.embeds,
        "score": tasks.scores,
        "classify": tasks.classifies,
    }
)


def can(model: ModelInfo | None, task: Task | None) -> bool:
    """Whether a model does what is asked. Of what is not known yet (None), it will say so itself."""
    return task is None or model is None or _CAN[task](model)


def detour(model: ModelInfo, task: Task | None) -> int:
    """How far a task is from what a model that can do it is made for; 0: it is made for it."""
    if task == "generate":
        return int(model.sourced is not None)
    if task == "embed":
        return int(model.generates)
    if task == "score" and model.vectors.classes is None:
        return 1 + model.generates
    return 0


def made_for(task: Task | None, models: Sequence[ModelInfo | None]) -> int | None:
    """The number of the model that is nearest to a task, the first of several; None where none can do it.

    One that is not known yet (None) comes last.
    """
    able = [number for number, model in enumerate(models) if can(model, task)]
    return min(able, key=lambda number: _distance(models[number], task), default=None)


def _distance(model: ModelInfo | None, task: Task | None) -> float:
    return math.inf if model is None else detour(model, task)
