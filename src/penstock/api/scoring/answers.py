"""What answers with scores and classes look like: types for the API's description, to which the tests hold them."""

from typing import Literal

import msgspec

from penstock.api.answers import ErrorFields


class CachedTokens(msgspec.Struct, forbid_unknown_fields=True):
    """How much of the texts came from the prefix cache."""

    cached_tokens: int


class ScoringUsage(msgspec.Struct, forbid_unknown_fields=True):
    """Tokens of a request for scores; `truncated_tokens` were left out, where the request asked for that."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: CachedTokens
    truncated_tokens: int | msgspec.UnsetType = msgspec.UNSET


class RankedText(msgspec.Struct, forbid_unknown_fields=True):
    """A document as it was given."""

    text: str


class RerankResult(msgspec.Struct, forbid_unknown_fields=True):
    """A document's place in the request, and its score."""

    index: int
    relevance_score: float
    document: RankedText | msgspec.UnsetType = msgspec.UNSET


class BilledUnits(msgspec.Struct, forbid_unknown_fields=True):
    """As Cohere has it: one search a request."""

    search_units: int


class InputTokens(msgspec.Struct, forbid_unknown_fields=True):
    """Tokens of the request, as Cohere tells them."""

    input_tokens: int


class RerankMeta(msgspec.Struct, forbid_unknown_fields=True):
    """What Cohere's API tells besides."""

    billed_units: BilledUnits
    tokens: InputTokens


class Ranks(msgspec.Struct, forbid_unknown_fields=True):
    """The answer of `/v1/rerank`: documents, the best first."""

    id: str
    model: str
    usage: ScoringUsage
    meta: RerankMeta
    results: list[RerankResult]


TeiErrorType = Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer"]


class TeiError(msgspec.Struct, forbid_unknown_fields=True):
    """What went wrong in TEI's form: a sentence, and its kind."""

    error: str
    error_type: TeiErrorType


class EitherError(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a refusal at `/rerank`: that of all endpoints, or with `error_type` that of TEI."""

    error: ErrorFields | str
    error_type: TeiErrorType | msgspec.UnsetType = msgspec.UNSET


class TeiRank(msgspec.Struct, forbid_unknown_fields=True):
    """A text's place in the request, and its score."""

    index: int
    score: float
    text: str | msgspec.UnsetType = msgspec.UNSET


class Score(msgspec.Struct, forbid_unknown_fields=True):
    """The score of a pair."""

    index: int
    object: Literal["score"]
    score: float


class Scores(msgspec.Struct, forbid_unknown_fields=True):
    """The answer of `/v1/score`."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: ScoringUsage


class ClassifiedText(msgspec.Struct, forbid_unknown_fields=True):
    """The likeliest class of a text, and the scores of all, in their order; or classes of its tokens."""

    index: int
    num_classes: int
    label: str | msgspec.UnsetType = msgspec.UNSET
    probs: list[float] | msgspec.UnsetType = msgspec.UNSET
    tokens: "list[LabelledToken] | msgspec.UnsetType" = msgspec.UNSET


class LabelledToken(msgspec.Struct, forbid_unknown_fields=True):
    """The likeliest class of the token that stands between two characters of a text."""

    start: int
    end: int
    label: str
    score: float


class ClassList(msgspec.Struct, forbid_unknown_fields=True):
    """The answer of `/v1/classify`."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ClassifiedText]
    usage: ScoringUsage


class TeiClass(msgspec.Struct, forbid_unknown_fields=True):
    """A class, and its score."""

    score: float
    label: str
