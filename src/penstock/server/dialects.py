"""Which dialects a server speaks, and where."""

from penstock.api.anthropic import errors as anthropic
from penstock.api.scoring import errors as scoring
from penstock.api.translation import schema as translation
from penstock.http.error_bodies import Dialects

DIALECTS = Dialects(
    {
        "/v1/messages": anthropic.DIALECT,
        "/embed": scoring.DIALECT,
        "/predict": scoring.DIALECT,
        "/rerank": scoring.RERANK_DIALECT,
        "/translate": translation.DIALECT,
        "/languages": translation.DIALECT,
    }
)
