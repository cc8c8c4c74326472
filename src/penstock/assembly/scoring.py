"""Scores and classes of texts from Python: what becomes of texts on their way into a model and out of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from penstock.api.maxsim import compared, maxsim
from penstock.api.tasks import check_classifies, check_instruction, check_scores, does
from penstock.assembly.inputs import embedding_of, late_input, pair_inputs, vector_in, vector_inputs
from penstock.core.errors import InvalidParameter
from penstock.core.request import Request, Standing
from penstock.core.scores import cosine, placed_scores, ranked, scores_of
from penstock.core.vector_form import VectorForm
from penstock.engine.intake import Intake
from penstock.engine.interface import ModelInfo
from penstock.engine.outputs import RequestState
from penstock.text.tokenizer import Tokenizer

TextOrPair = str | tuple[str, str]


@dataclass(frozen=True)
class Asked:
    """How a call wants scores.

    Attributes:
        activated: whether they are more than logits.
        instruction: the task of a model that is told one; None: its usual one.
        standing: how it stands to others.
    """

    activated: bool
    instruction: str | None
    standing: Standing


@dataclass(frozen=True)
class Classified:
    """The classes of a text.

    Attributes:
        label: of the likeliest class.
        scores: of all classes, by label.
    """

    label: str
    scores: dict[str, float]


@dataclass(frozen=True)
class LabelledToken:
    """The likeliest class of a token.

    Attributes:
        start, end: its first character in the text, and that behind its last.
        label, score: of the class.
    """

    start: int
    end: int
    label: str
    score: float


@dataclass(frozen=True)
class Ranked:
    """A document, and how well it fits a query.

    Attributes:
        index: its place among the documents that were given.
    """

    index: int
    score: float
    document: str


class Scoring:
    """Scores and classes by one model.

    Args:
        run: carries requests out, in their order.
    """

    def __init__(
        self,
        model: ModelInfo,
        tokenizer: Tokenizer | None,
        intake: Intake,
        run: Callable[[list[Request]], list[RequestState]],
    ) -> None:
        self._model, self._tokenizer, self._intake, self._run = model, tokenizer, intake, run

    def classify(self, inputs: Sequence[TextOrPair], asked: Asked) -> list[Classified]:
        """See `LLM.classify`."""
        check_classifies(self._model)
        classes = self._model.vectors.classes
        assert classes is not None, "that was checked"
        if classes.each_token:
            raise InvalidParameter("inputs", "this model sorts tokens of texts; use LLM.label_tokens.")
        found = []
        for logits in self._vectors(self._inputs(inputs), asked.standing):
            scores = scores_of(logits, classes.activation if asked.activated else "identity")
            best = ranked(scores, 1)[0]
            found.append(Classified(classes.labels[best], dict(zip(classes.labels, scores, strict=True))))
        return found

    def label_tokens(self, texts: Sequence[str], *, standing: Standing) -> list[list[LabelledToken]]:
        """See `LLM.label_tokens`."""
        classes = self._model.vectors.classes
        if classes is None or not classes.each_token or self._tokenizer is None:
            raise InvalidParameter("texts", f"this model sorts no tokens of texts: {does(self._model)}.")
        if not all(texts):
            raise InvalidParameter("texts", "one is empty; at least one character is needed.")
        read, size, found = [self._tokenizer.encode_placed(text) for text in texts], len(classes.labels), []
        for (_, places), numbers in zip(read, self._vectors([(ids, 0, 0) for ids, _ in read], standing), strict=True):
            found.append(
                [
                    LabelledToken(*place, classes.labels[best], scores[best])
                    for place, scores in placed_scores(places, numbers, size, classes.activation)
                    for best in ranked(scores, 1)
                ]
            )
        return found

    def score(self, first: str | Sequence[str], second: str | Sequence[str], asked: Asked) -> list[float]:
        """See `LLM.score`."""
        check_scores(self._model)
        firsts, seconds = ([given] if isinstance(given, str) else list(given) for given in (first, second))
        if len(firsts) not in (1, len(seconds)):
            raise InvalidParameter(
                "first", f"{len(firsts)} texts cannot be scored with {len(seconds)}: give one, or as many of both."
            )
        classes, standing = self._model.vectors.classes, asked.standing
        check_instruction(asked.instruction, self._model)
        if self._model.vectors.late is not None:
            return self._late(firsts, seconds, standing)
        if classes is None:
            vectors = self._vectors(self._inputs((*firsts, *seconds)), standing)
            ones, others = vectors[: len(firsts)], vectors[len(firsts) :]
            return [cosine(ones[index % len(ones)], other) for index, other in enumerate(others)]
        pairs = [(firsts[index % len(firsts)], text) for index, text in enumerate(seconds)]
        activation = classes.activation if asked.activated else "identity"
        vectors = self._vectors(self._inputs(pairs, asked.instruction), standing)
        return [scores_of(logits, activation)[0] for logits in vectors]

    def _late(self, firsts: Sequence[str], seconds: Sequence[str], standing: Standing) -> list[float]:
        modules, kinds = self._model.vectors, ["query"] * len(firsts) + ["document"] * len(seconds)
        texts = [
            late_input(text, self._tokenizer, modules, kind)
            for text, kind in zip((*firsts, *seconds), kinds, strict=True)
        ]
        requests = [self._intake.embedding(text.ids, "tokens", standing, unseen=text.unseen) for text in texts]
        outputs = [embedding_of(state.take()) for state in self._run(requests)]
        made = [compared(text, output) for text, output in zip(texts, outputs, strict=True)]
        ones, others = made[: len(firsts)], made[len(firsts) :]
        size = self._model.embedding_size
        return [maxsim(ones[index % len(ones)], other, size) for index, other in enumerate(others)]

    def _inputs(self, given: Sequence[TextOrPair], instruction: str | None = None) -> list[tuple[list[int], int, int]]:
        """Ids of each, how many of the first go into no vector, and where a second text begins.

        Neighbours of one kind are read together: texts, and pairs whose first text is the same.
        """
        modules, found = self._model.vectors, list[tuple[list[int], int, int]]()
        for first, group in groupby(given, lambda each: each[0] if isinstance(each, tuple) else None):
            if first is None:
                texts = [each for each in group if isinstance(each, str)]
                found += [(ids, skipped, 0) for ids, skipped in vector_inputs(texts, self._tokenizer, modules, None)]
            else:
                seconds = [each[1] for each in group if isinstance(each, tuple)]
                pairs = pair_inputs(first, seconds, self._tokenizer, modules, instruction)
                found += [(ids, 0, second) for ids, second in pairs]
        return found

    def _vectors(self, inputs: Sequence[tuple[list[int], int, int]], standing: Standing) -> list[list[float]]:
        pooling, form = self._model.vectors.pooling, VectorForm(self._model.embedding_size)
        requests = [
            self._intake.embedding(ids, pooling, standing, first, second_from=second) for ids, first, second in inputs
        ]
        return [vector_in(state.take(), form) for state in self._run(requests)]
