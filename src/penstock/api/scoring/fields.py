"""Bodies of requests for scores and classes, as typed fields."""

from typing import Any, Literal, TypeVar

import msgspec

from penstock.api.fields import FieldReader, FieldRules, RefusedField
from penstock.api.parsing import decode_object
from penstock.api.requests import ScoringFields
from penstock.api.rules import COMMON_RULES

MOST_TEXTS = 10_000
"""Texts of one request; more are refused by their number."""

RULES: FieldRules = {
    "safety_identifier": COMMON_RULES["safety_identifier"],
}
RERANK_RULES: FieldRules = {
    **RULES,
    "max_chunks_per_doc": RefusedField("documents are not cut into chunks; leave it out.", (1,)),
    "rank_fields": RefusedField("documents are texts; leave it out.", ([], ["text"])),
}


class TextObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text, as some clients write it."""

    text: str


Text = str | TextObject


class RerankFields(ScoringFields, frozen=True, kw_only=True):
    """The body of `/v1/rerank`, as Jina, Cohere and vLLM have it."""

    query: Text
    documents: list[Text]
    top_n: int | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: int | None = None


class ScoreFields(ScoringFields, frozen=True, kw_only=True):
    """The body of `/v1/score`, as vLLM has it; `queries` and `documents` are other names."""

    text_1: Text | list[Text] | None = None
    text_2: Text | list[Text] | None = None
    queries: Text | list[Text] | None = None
    documents: Text | list[Text] | None = None


class ClassifyFields(ScoringFields, frozen=True, kw_only=True):
    """The body of `/v1/classify`, as vLLM has it."""

    input: str | list[str]


class TeiFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What TEI's requests have in common, and the `model`, since a server may have several."""

    model: str | None = None
    truncate: bool | None = None
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = None
    raw_scores: bool | None = None


class TeiRerankFields(TeiFields, frozen=True, kw_only=True):
    """The body of TEI's `/rerank`; `top_n` is what LiteLLM sends beside it."""

    query: str
    texts: list[str]
    top_n: int | None = None
    return_text: bool | None = None


class EitherRerankFields(ScoringFields, frozen=True, kw_only=True):
    """The body of `/rerank` as the API's description has it: that of `/v1/rerank`, or with `texts` that of TEI."""

    query: Text
    documents: list[Text] | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: int | None = None
    texts: list[str] | None = None
    return_text: bool | None = None
    raw_scores: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = None


class TeiPredictFields(TeiFields, frozen=True, kw_only=True):
    """The body of TEI's `/predict`: a text, or a list of texts or of pairs, each a list."""

    inputs: str | list[str | list[str]]


class TeiEmbedFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of TEI's `/embed`, with the `model`."""

    model: str | None = None
    inputs: str | list[str | int | list[int]]
    truncate: bool | None = None
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    dimensions: int | None = None


Fields = TypeVar("Fields", bound=msgspec.Struct)


def parse(body: bytes, reader: FieldReader, kind: type[Fields], rules: FieldRules = RULES) -> Fields:
    """Parse a body; raises RequestError, naming the field."""
    return convert(decode_object(body), reader, kind, rules)


def convert(fields: dict[str, Any], reader: FieldReader, kind: type[Fields], rules: FieldRules = RULES) -> Fields:
    """The same of an object."""
    reader.settle(fields, rules)
    return reader.convert(fields, kind)
