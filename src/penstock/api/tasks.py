"""What a model does, and which endpoints would work where it is asked for another thing."""

from penstock.core.errors import InvalidParameter
from penstock.core.sourced import NO_CONVERSATIONS, NO_VECTORS
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


def generates(model: ModelInfo) -> bool:
    """Whether it makes tokens, of a prompt or of a source."""
    return model.generates


def converses(model: ModelInfo) -> bool:
    """Whether it answers conversations, which an encoder–decoder does not."""
    return model.generates and model.sourced is None


def translates(model: ModelInfo) -> bool:
    """Whether it makes texts of others."""
    return model.sourced is not None


def embeds(model: ModelInfo) -> bool:
    """Whether it makes vectors of texts."""
    return model.sourced is None and model.vectors.classes is None


def scores(model: ModelInfo) -> bool:
    """Whether it gives two texts one score."""
    classes = model.vectors.classes
    return model.sourced is None and (classes is None or (len(classes.labels) == 1 and not classes.each_token))


def classifies(model: ModelInfo) -> bool:
    """Whether it knows classes of texts."""
    return model.vectors.classes is not None


def check_generates(model: ModelInfo) -> None:
    """Raise InvalidParameter where a model generates no text."""
    if not generates(model):
        raise InvalidParameter("model", f"{model.name!r} generates no text: {does(model)}.")


def check_converses(model: ModelInfo) -> None:
    """Raise InvalidParameter where a model takes no conversations."""
    if model.sourced is not None:
        raise InvalidParameter("model", NO_CONVERSATIONS)
    check_generates(model)


def check_embeds(model: ModelInfo) -> None:
    """Raise InvalidParameter where a model makes no vectors, or its vectors are scores."""
    if model.sourced is not None:
        raise InvalidParameter("model", NO_VECTORS)
    if not embeds(model):
        raise InvalidParameter("model", f"{model.name!r} makes no vectors of texts: {does(model)}.")


def check_scores(model: ModelInfo) -> None:
    """Raise InvalidParameter where a model gives two texts not one score."""
    if not scores(model):
        raise InvalidParameter("model", f"{model.name!r} gives no score to two texts: {does(model)}.")


def check_classifies(model: ModelInfo) -> None:
    """Raise InvalidParameter where a model knows no classes."""
    if not classifies(model):
        raise InvalidParameter("model", f"{model.name!r} knows no classes: {does(model)}.")


def check_instruction(instruction: str | None, model: ModelInfo) -> None:
    """Raise InvalidParameter where a request has a task for a model that is told none."""
    classes = model.vectors.classes
    if instruction is not None and (classes is None or classes.template == "own"):
        raise InvalidParameter("instruction", "this model is told no task; leave it out.")
