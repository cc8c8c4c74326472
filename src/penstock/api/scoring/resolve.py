"""From the fields of requests for scores and classes to jobs: which texts are computed, as which tokens."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import structs

from penstock.api.extras import asked_standing, check_extras
from penstock.api.job import Job
from penstock.api.parameters import context_of
from penstock.api.parsing import in_terms_of
from penstock.api.requests import ScoringFields
from penstock.api.resolve import check_ids, check_model_name
from penstock.api.scored import Scored
from penstock.api.scoring.fields import MOST_TEXTS, ClassifyFields, RerankFields, ScoreFields, Text
from penstock.api.tasks import check_classifies, check_instruction, check_scores, does
from penstock.api.truncation import FIELD, Truncation, truncation_of
from penstock.api.vectors import MAX_VALUES
from penstock.core.errors import ContextLengthExceeded, InvalidParameter
from penstock.core.late_interaction import TextKind
from penstock.engine.interface import ModelInfo
from penstock.text.judged_pairs import judged_pairs
from penstock.text.late_interaction import LateTokens
from penstock.text.pairs import Cut, Pair
from penstock.text.tokenizer import Place, Tokenizer
from penstock.text.vector_prompts import VectorPrompt, vector_prompt

NO_TOKENIZER = "this server has no tokenizer, so texts cannot be read."


class _Read(NamedTuple):
    """A text, or two, as the model reads it.

    Attributes:
        pair: its tokens.
        param: the field of the text that it comes from.
    """

    pair: Pair
    param: str


class ScoringResolver:
    """Checks requests for scores and classes against the model, and makes jobs of them. Tokenizes."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    def rerank(self, fields: RerankFields, model: ModelInfo, *, returned: bool) -> Job:
        """`returned`: whether documents come back where the request does not say it. Raises RequestError."""
        check_model_name(fields.model, model)
        check_scores(model)
        query, documents = text_of("query", fields.query), texts_of("documents", fields.documents)
        for name, value in (("top_n", fields.top_n), ("max_tokens_per_doc", fields.max_tokens_per_doc)):
            if value is not None and value < 1:
                raise InvalidParameter(name, f"is {value}; it must be at least 1.")
        tells = returned if fields.return_documents is None else fields.return_documents
        scored = Scored(most=fields.top_n, texts=tuple(documents) if tells else None)
        most = fields.max_tokens_per_doc
        return self._scores(fields, model, [query], documents, ("query", "documents"), scored, most_second=most)

    def score(self, fields: ScoreFields, model: ModelInfo) -> Job:
        """The job of a request for scores of pairs. Raises RequestError."""
        check_model_name(fields.model, model)
        check_scores(model)
        names, given = _sides(fields)
        sides = [
            texts_of(name, [each] if not isinstance(each, list) else each, listed=isinstance(each, list))
            for name, each in zip(names, given, strict=True)
        ]
        if len(sides[0]) not in (1, len(sides[1])):
            raise InvalidParameter(
                names[0],
                f"{len(sides[0])} texts cannot be scored with {len(sides[1])} of {names[1]}: send one, or as many of "
                "both.",
            )
        return self._scores(fields, model, sides[0], sides[1], names, Scored())

    def classify(self, fields: ClassifyFields, model: ModelInfo) -> Job:
        """The job of a request for classes of texts. Raises RequestError."""
        check_model_name(fields.model, model)
        check_classifies(model)
        single, classes = isinstance(fields.input, str), model.vectors.classes
        if classes is not None and classes.each_token:
            return self._labels(fields, model)
        inputs: list[str | list[str]] = [fields.input] if isinstance(fields.input, str) else list(fields.input)
        return self.classes(fields, model, inputs, "input", Scored(single=single))

    def _labels(self, fields: ClassifyFields, model: ModelInfo) -> Job:
        """The job for classes of tokens."""
        single = isinstance(fields.input, str)
        texts = texts_of("input", [fields.input] if isinstance(fields.input, str) else fields.input, listed=not single)
        truncation, read, places = truncation_of(fields, model), list[_Read](), list[tuple[Place | None, ...]]()
        for index, text in enumerate(texts):
            param = "input" if single else f"input[{index}]"
            tokenizer = self._with_text(param)
            if truncation is None:
                tokenizer.check_length(text, model.max_model_len, param)
            ids, where = tokenizer.encode_placed(text)
            kept = list(range(len(ids)))
            if truncation is not None:
                kept = truncation.cut(kept, *tokenizer.added)
            read.append(_Read(Pair([ids[place] for place in kept], 0, len(ids) - len(kept)), param))
            places.append(tuple(where[place] for place in kept))
        tokens = sum(map(len, places))
        if tokens * model.embedding_size > MAX_VALUES:
            raise InvalidParameter(
                "input",
                f"{tokens} tokens with {model.embedding_size} scores each are more than the {MAX_VALUES} of an answer.",
            )
        job = self._job(fields, model, read, truncation, Scored(single=single, places=tuple(places)))
        return structs.replace(job, values=tokens * model.embedding_size)

    def classes(
        self, fields: ScoringFields, model: ModelInfo, inputs: list[str | list[str]], param: str, scored: Scored
    ) -> Job:
        """The job for classes of texts, or of pairs, each a list. Raises RequestError."""
        _check_count(param, inputs)
        truncation, read = truncation_of(fields, model), list[_Read]()
        for index, given in enumerate(inputs):
            place = param if scored.single else f"{param}[{index}]"
            texts = [given] if isinstance(given, str) else given
            if not 1 <= len(texts) <= 2:
                raise InvalidParameter(place, f"has {len(texts)} texts; send one text, or two in a list.")
            for text in texts:
                text_of(place, text)
            if len(texts) == 2:
                (pair,) = self._pairs(texts[0], [texts[1]], model, truncation, [place], instruction=fields.instruction)
            else:
                pair = self._single(texts[0], model, truncation, place)
            read.append(_Read(pair, place))
        return self._job(fields, model, read, truncation, scored)

    def _scores(
        self,
        fields: ScoringFields,
        model: ModelInfo,
        firsts: list[str],
        seconds: list[str],
        names: tuple[str, str],
        scored: Scored,
        *,
        most_second: int | None = None,
    ) -> Job:
        """The job for scores of the first of both with each of the second, or of each with its counterpart."""
        truncation = truncation_of(fields, model)
        places = [f"{names[1]}[{index}]" for index in range(len(seconds))]
        if model.vectors.classes is None:
            if most_second is not None:
                raise InvalidParameter(
                    "max_tokens_per_doc", f"this model reads each text alone; use {FIELD}, which cuts all."
                )
            compared = tuple((index if len(firsts) > 1 else 0, len(firsts) + index) for index in range(len(seconds)))
            scored = structs.replace(scored, compared=compared)
            if model.vectors.late is not None:
                return self._late(fields, model, (firsts, seconds), (names[0], places), scored)
            before = vector_prompt(model.vectors.prompt(None), self._tokenizer, model.vectors)
            read = [
                _Read(self._vector(text, before, model, truncation, place), place)
                for text, place in zip((*firsts, *seconds), (*[names[0]] * len(firsts), *places), strict=True)
            ]
            job = self._job(fields, model, read, truncation, scored)
            return structs.replace(job, pooled_from=before.skipped)
        if len(firsts) == 1:
            pairs = self._pairs(firsts[0], seconds, model, truncation, places, most_second, fields.instruction)
        else:
            pairs = [
                self._pairs(first, [second], model, truncation, [place], instruction=fields.instruction)[0]
                for first, second, place in zip(firsts, seconds, places, strict=True)
            ]
        read = [_Read(pair, f"{place} with {names[0]}") for pair, place in zip(pairs, places, strict=True)]
        return self._job(fields, model, read, truncation, scored, cuts=most_second is not None)

    def _late(
        self,
        fields: ScoringFields,
        model: ModelInfo,
        texts: tuple[list[str], list[str]],
        params: tuple[str, list[str]],
        scored: Scored,
    ) -> Job:
        """The job of a model that compares all tokens of queries and documents."""
        assert model.vectors.late is not None, "it was asked for"
        if fields.truncate_prompt_tokens not in (None, -1) or fields.truncation_side == "left":
            raise InvalidParameter(FIELD, "a model of late interaction cuts texts to what it was made for; send -1.")
        tokens, cuts = LateTokens(self._with_text(params[0]), model.vectors.late), fields.truncate_prompt_tokens == -1
        late = []
        kinds: tuple[TextKind, TextKind] = ("query", "document")
        for kind, given, places in zip(kinds, texts, ([params[0]] * len(texts[0]), params[1]), strict=True):
            for text, place in zip(given, places, strict=True):
                with in_terms_of((("input", place),)):
                    late.append(tokens(text, kind, cut=cuts))
        read = [_Read(Pair(text.ids, 0), params[0]) for text in late]
        job = self._job(fields, model, read, None, scored)
        return structs.replace(job, pooling="tokens", late=tuple(late), values=job.prompt_tokens * model.embedding_size)

    def _pairs(
        self,
        first: str,
        seconds: Sequence[str],
        model: ModelInfo,
        truncation: Truncation | None,
        places: Sequence[str],
        most_second: int | None = None,
        instruction: str | None = None,
    ) -> list[Pair]:
        tokenizer, cut = self._with_text(places[0]), None
        if truncation is not None or most_second is not None:
            most, side = (None, "right") if truncation is None else (truncation.most, truncation.side)
            cut = Cut(most, side, most_second)
        if truncation is None:
            for text, place in zip((first, *seconds), (places[0], *places), strict=True):
                if most_second is None or text is first:
                    tokenizer.check_length(text, model.max_model_len, place)
        classes = model.vectors.classes
        try:
            if classes is not None and classes.template == "qwen3":
                return judged_pairs(tokenizer, first, seconds, cut, instruction)
            return tokenizer.encode_pairs(first, seconds, cut, typed=classes is not None and classes.tells_apart)
        except IndexError:
            assert truncation is not None, "nothing else is cut"
            raise InvalidParameter(FIELD, f"{truncation.most} leaves no room for two texts; ask for more.") from None

    def _single(self, text: str, model: ModelInfo, truncation: Truncation | None, place: str) -> Pair:
        tokenizer, classes = self._with_text(place), model.vectors.classes
        if classes is not None and classes.template != "own":
            raise InvalidParameter(place, f"{model.name!r} takes no single texts: {does(model)}.")
        if truncation is None:
            tokenizer.check_length(text, model.max_model_len, place)
        ids = tokenizer.encode(text)
        kept = ids if truncation is None else truncation.cut(ids, *tokenizer.added)
        return Pair(kept, 0, len(ids) - len(kept))

    def _vector(
        self, text: str, before: VectorPrompt, model: ModelInfo, truncation: Truncation | None, place: str
    ) -> Pair:
        """A text whose vector is compared, with the model's usual prompt before it."""
        tokenizer, whole = self._with_text(place), before.text + text
        if truncation is None:
            tokenizer.check_length(whole, model.max_model_len, place)
        ids = tokenizer.encode(whole)
        kept = ids if truncation is None else truncation.cut(ids, *before.around)
        return Pair(kept, 0, len(ids) - len(kept))

    def _with_text(self, place: str) -> Tokenizer:
        if self._tokenizer is None:
            raise InvalidParameter(place, NO_TOKENIZER)
        return self._tokenizer

    def _job(
        self,
        fields: ScoringFields,
        model: ModelInfo,
        read: list[_Read],
        truncation: Truncation | None,
        scored: Scored,
        *,
        cuts: bool = False,
    ) -> Job:
        classes = model.vectors.classes
        check_extras(fields)
        check_instruction(fields.instruction, model)
        for (ids, _, _), param in read:
            check_ids(ids, model, param)
            if len(ids) > model.max_model_len:
                raise ContextLengthExceeded(
                    f"{param} has {len(ids)} tokens; {context_of(model)}. Shorten it, or ask for {FIELD}.",
                    param=param.partition(" ")[0],
                )
        values = len(read) * model.embedding_size
        if values > MAX_VALUES and not scored.compared:
            raise InvalidParameter(
                read[0].param.partition("[")[0],
                f"{len(read)} texts with {model.embedding_size} numbers each are more than the {MAX_VALUES} of an "
                "answer.",
            )
        if classes is not None:
            used = fields.use_activation is not False
            scored = structs.replace(
                scored, labels=classes.labels, activation=classes.activation if used else "identity"
            )
        return Job(
            prompts=[each.pair.ids for each in read],
            params=[],
            standing=asked_standing(fields),
            timeout=fields.timeout,
            user=fields.user,
            pooling=model.vectors.pooling,
            seconds=tuple(each.pair.second for each in read),
            scored=scored,
            cut=None if truncation is None and not cuts else sum(each.pair.cut for each in read),
            values=values,
        )


def _sides(fields: ScoreFields) -> tuple[tuple[str, str], tuple[Text | list[Text], Text | list[Text]]]:
    """Both sides of pairs, and the names of their fields: vLLM has two for each."""
    names, given = list[str](), list[Text | list[Text]]()
    for one, other in (("text_1", "queries"), ("text_2", "documents")):
        there = [name for name in (one, other) if getattr(fields, name) is not None]
        if len(there) != 1:
            why = "is missing" if not there else f"is the same as {other}; send one of them"
            raise InvalidParameter(one, f"{why}.")
        names.append(there[0])
        given.append(getattr(fields, there[0]))
    return (names[0], names[1]), (given[0], given[1])


def text_of(param: str, given: Text) -> str:
    """A text, which is not empty. Raises InvalidParameter."""
    text = given if isinstance(given, str) else given.text
    if not text:
        raise InvalidParameter(param, "is empty; at least one character is needed.")
    return text


def texts_of(param: str, given: Sequence[Text], *, listed: bool = True) -> list[str]:
    """Texts, at least one and none of them empty. Raises InvalidParameter."""
    _check_count(param, given)
    return [text_of(f"{param}[{index}]" if listed else param, text) for index, text in enumerate(given)]


def _check_count(param: str, given: Sequence[object]) -> None:
    if not given:
        raise InvalidParameter(param, "is empty; send at least one text.")
    if len(given) > MOST_TEXTS:
        raise InvalidParameter(param, f"{len(given)} texts given, at most {MOST_TEXTS} are accepted.")
