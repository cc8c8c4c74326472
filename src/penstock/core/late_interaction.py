"""Late interaction, as data: a vector for each token, queries and documents told apart, and what is not compared.

Khattab and Zaharia, "ColBERT: Efficient and effective passage search via contextualized late interaction over BERT",
SIGIR 2020, section 3.
"""

from typing import Literal

import msgspec

from penstock.core.errors import InvalidParameter

TextKind = Literal["query", "document"]


class LateInteraction(msgspec.Struct, frozen=True):
    """How texts become the tokens whose vectors are compared.

    Attributes:
        query_marker, document_marker: the token behind the first special one that says which of both a text is.
        query_length: tokens of a query, those around its text counted; it is filled up to that where it `expands`.
        document_length: tokens of a document, at most.
        expands: whether shorter queries are filled up with mask tokens, whose vectors count too.
        seen: whether other tokens see these.
        skipped: tokens of documents whose vectors are left out, punctuation most often.
    """

    query_marker: str
    document_marker: str
    query_length: int
    document_length: int
    expands: bool = True
    seen: bool = False
    skipped: tuple[str, ...] = ()


def text_kind(input_type: str | None) -> TextKind:
    """Which of both a text is; a document where nothing is said. Raises InvalidParameter."""
    match input_type:
        case None | "document":
            return "document"
        case "query":
            return "query"
    raise InvalidParameter("input_type", f"{input_type!r} is neither query nor document, which this model tells apart.")
