"""How hidden states become the vector of a text, as data: what a checkpoint has behind its transformer."""

from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from penstock.core.errors import InvalidParameter
from penstock.core.late_interaction import LateInteraction

Pooling = Literal["last", "mean", "cls", "max", "mean_sqrt_len", "weightedmean", "tokens"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
"""Of a text's tokens: the last, the mean, the first; in each column the largest; their sum by the root of how many they
are; the mean in which the n-th counts n times; or each by itself, which gives a vector for each token."""

DenseActivation = Literal["identity", "tanh", "relu", "gelu", "sigmoid", "silu"]


def pooled(pooling: Pooling, first: int, length: int) -> tuple[int, int]:
    """Which of a text's `length` tokens go into its vector, from which on and before which."""
    if pooling == "last":
        return length - 1, length
    return (0, 1) if pooling == "cls" else (first, length)


def pooled_tokens(length: int, first: int) -> int:
    """How many of a text's `length` tokens are pooled from the `first` on; a text of nothing but a prompt is whole."""
    return length - first if first < length else length


def vectors_at(places: Iterable[int], vectors: bytes, count: int) -> list[bytes]:
    """Of `count` vectors, one after another, those at these places."""
    size = len(vectors) // count
    return [vectors[place * size : (place + 1) * size] for place in places]


class Dense(msgspec.Struct, frozen=True):
    """v → activation(weight · v + bias).

    Attributes:
        folder: of its weights, in the checkpoint; empty where they are among the transformer's.
        inputs, outputs: numbers of a vector before it and behind it.
        biased: whether there is a bias.
        tensor: what the names of its weights begin with.
    """

    folder: str
    inputs: int
    outputs: int
    activation: DenseActivation = "identity"
    biased: bool = True
    tensor: str = "linear"


class Centre(msgspec.Struct, frozen=True):
    """v → (v - mean) / deviation · weight + bias, which is layer normalization of one vector.

    Attributes:
        tensor: what the names of its weights begin with, among the transformer's.
        size: numbers of the vector.
        eps: what is added to the variance.
        biased: whether there is a bias.
    """

    tensor: str
    size: int
    eps: float
    biased: bool = True


class Contrast(msgspec.Struct, frozen=True):
    """v → the logit of one token less that of another, by the model's output head.

    Attributes:
        token, other: as they stand in the vocabulary.
    """

    token: str
    other: str


class Normalize(msgspec.Struct, frozen=True):
    """v → v by its Euclidean length."""


VectorStep = Dense | Centre | Contrast | Normalize

ScoreActivation = Literal["identity", "sigmoid", "softmax"]
PairTemplate = Literal["own", "qwen3"]


class Classes(msgspec.Struct, frozen=True):
    """What the numbers of a vector are that is no vector of a text's meaning: logits of classes.

    Attributes:
        labels: the name of each class.
        activation: what makes scores of logits.
        tells_apart: whether the model is told which tokens are of the second of two texts.
        each_token: whether each token of a text has scores of its own.
        template: how two texts are put together: "own", by the tokenizer; "qwen3", as Qwen3-Reranker wants them.
    """

    labels: tuple[str, ...]
    activation: ScoreActivation
    tells_apart: bool = False
    template: PairTemplate = "own"
    each_token: bool = False


class VectorModules(msgspec.Struct, frozen=True):
    """What becomes of hidden states [tokens, width].

    Attributes:
        pooling: how they become one vector where a request does not say it.
        steps: what becomes of that, in order.
        includes_prompt: whether tokens of a prompt before the text (an instruction) are pooled, too.
        prompts: texts that may be put before a text, by name.
        default_prompt: the name of the one that is, where a request names none; None: none is.
        longest: tokens of a text for which it was made, where the transformer takes more; None: what that takes.
        similarity: how two vectors are compared: "cosine", "dot", "euclidean" or "manhattan".
        dimensions: how many numbers of a vector are given where a request does not say it; None: all.
        late: how queries and documents are told apart, of a model that compares all their tokens; None: of any other.
        classes: what its numbers are, of a classifier or reranker; None: a vector of the text's meaning.
    """

    pooling: Pooling = "last"
    steps: tuple[VectorStep, ...] = (Normalize(),)
    includes_prompt: bool = True
    prompts: dict[str, str] = {}
    default_prompt: str | None = None
    longest: int | None = None
    similarity: str = "cosine"
    dimensions: int | None = None
    late: LateInteraction | None = None
    classes: Classes | None = None

    def obstacle(self, width: int) -> str | None:
        """Why this cannot follow a transformer of `width` columns; None where it can."""
        for step in self.steps:
            if isinstance(step, Dense):
                if step.inputs != width:
                    return f"{step.folder}/config.json has in_features = {step.inputs}, but is given {width} numbers."
                width = step.outputs
        if self.dimensions is not None and self.dimensions > width:
            return f"the checkpoint has truncate_dim = {self.dimensions}, but a vector has {width} numbers."
        return None

    @property
    def normalizes(self) -> bool:
        """Whether vectors have length 1."""
        return bool(self.steps) and isinstance(self.steps[-1], Normalize)

    def prompt(self, name: str | None) -> str:
        """The prompt of that name, or the usual one, which may be none. Raises InvalidParameter."""
        name = self.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            there = (
                f"has the prompts {', '.join(sorted(self.prompts))}"
                if self.prompts
                else "has no prompts; put yours before the text"
            )
            raise InvalidParameter("input_type", f"{name!r} is none of this model's: it {there}.")
        return self.prompts[name]

    def size(self, width: int) -> int:
        """Numbers of a vector, of a transformer of `width` columns."""
        for step in self.steps:
            width = 1 if isinstance(step, Contrast) else step.outputs if isinstance(step, Dense) else width
        return width
