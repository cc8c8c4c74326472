"""Names of models, as requests have them."""

from collections.abc import Sequence

from penstock.api.extras import MAX_NAME_LENGTH
from penstock.core.errors import ModelNotFound


def model_not_found(name: str, served: Sequence[str]) -> ModelNotFound:
    """What a request gets that names another model than those that are served."""
    return ModelNotFound(
        f"The model {name[:MAX_NAME_LENGTH]!r} does not exist here; this server serves {listed(served)}.",
        param="model",
    )


def listed(names: Sequence[str]) -> str:
    """Names, as a sentence has them."""
    *others, last = map(repr, names)
    return f"{', '.join(others)} and {last}" if others else last
