"""What a model does, and which endpoints would work where it is asked for another thing."""

from penstock.core.errors import InvalidParameter
from penstock.engine.interface import ModelInfo


def does(model: ModelInfo) -> str:
    """What a model does, and where it is asked for it, as a sentence that goes on has it."""
    classes = model.vectors.classes
    if model.sourced is not None:
        return "it makes texts of others; ask /v1/completions or /translate"
    if classes is None and model.generates:
        return "it generates; ask /v1/chat/completions or /v1/completions"
    if classes is None:
        return "it makes vectors of texts; ask /v1/embeddings, /v1/rerank or /v1/score"
    if classes.each_token:
        return f"it sorts tokens of texts into {len(classes.labels)} classes; ask /v1/classify"
    if len(classes.labels) == 1:
        return "it scores pairs of texts; ask /v1/rerank, /v1/score or /v1/classify"
    return f"it sorts texts into {len(classes.labels)} classes; ask /v1/classify"


def check_generates(model: ModelInfo) -> None:
    """Raise InvalidParameter where a model generates no text."""
    if not model.generates:
        raise InvalidParameter("model", f"{model.name!r} generates no text: {does(model)}.")


def check_embeds(model: ModelInfo) -> None:
    """Raise InvalidParameter where a model's vectors are scores."""
    if model.vectors.classes is not None:
        raise InvalidParameter("model", f"{model.name!r} makes no vectors of texts: {does(model)}.")


def check_scores(model: ModelInfo) -> None:
    """Raise InvalidParameter where a model gives two texts not one score."""
    classes = model.vectors.classes
    if model.sourced is not None or (classes is not None and (classes.each_token or len(classes.labels) != 1)):
        raise InvalidParameter("model", f"{model.name!r} gives no score to two texts: {does(model)}.")


def check_classifies(model: ModelInfo) -> None:
    """Raise InvalidParameter where a model knows no classes."""
    if model.vectors.classes is None:
        raise InvalidParameter("model", f"{model.name!r} knows no classes: {does(model)}.")


def check_instruction(instruction: str | None, model: ModelInfo) -> None:
    """Raise InvalidParameter where a request has a task for a model that is told none."""
    classes = model.vectors.classes
    if instruction is not None and (classes is None or classes.template == "own"):
        raise InvalidParameter("instruction", "this model is told no task; leave it out.")
