"""Beam search as users of vLLM ask for it: `use_beam_search`, with `n` or `best_of` as its width."""

from penstock.api.requests import CommonFields
from penstock.core.beam_search import BeamSearch
from penstock.core.errors import InvalidParameter


def beam_of(fields: CommonFields) -> BeamSearch | None:
    """The search that a request asks for, None where tokens are drawn. Raises InvalidParameter."""
    n = 1 if fields.n is None else fields.n
    width = n if fields.best_of is None else fields.best_of
    if not fields.use_beam_search:
        if width != n:
            raise InvalidParameter("best_of", f"must equal n ({n}), unless use_beam_search is true.")
        neutral = {"length_penalty": (None, 1.0), "early_stopping": (None, False)}
        for name, values in neutral.items():
            if getattr(fields, name) not in values:
                raise InvalidParameter(name, "is a part of beam search; leave it out, or set use_beam_search to true.")
        return None
    if width < n:
        raise InvalidParameter("best_of", f"{width} beams find no {n} outputs; it must be at least n.")
    if getattr(fields, "thinking_token_budget", None) is not None:
        raise InvalidParameter("thinking_token_budget", "beam search cannot keep to one; leave one of them out.")
    try:
        return BeamSearch(
            width=width,
            length_penalty=1.0 if fields.length_penalty is None else fields.length_penalty,
            early_stopping=fields.early_stopping or False,
        )
    except InvalidParameter as error:
        if error.param != "beam_width":
            raise
        name = "n" if fields.best_of is None else "best_of"
        raise InvalidParameter(name, error.message.removeprefix("beam_width: ")) from None
