"""Whether a key may ask for what a request asks for, and how long its answer may be."""

from typing import Any

import msgspec

from penstock.access.errors import NotPermitted
from penstock.access.tenants import Permits
from penstock.core.errors import ContextLengthExceeded, InvalidParameter
from penstock.gateway.asked import BOUNDS, Asked

# Where models answer with text, and no field says how long it may be.
_UNBOUNDED = "/translate"
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def check_permitted(permits: Permits, path: str, model: str | None) -> None:
    """Raise NotPermitted where a key may not ask this at all. The model is what the request names."""
    if permits.endpoints is not None and path not in permits.endpoints:
        raise NotPermitted(f"This API key may not ask {path}; it may ask {', '.join(sorted(permits.endpoints))}.")
    if permits.models is None or model in permits.models:
        return
    may = f"it may ask for {', '.join(sorted(permits.models))}" if permits.models else "it may ask for none"
    named = "a request that names no model" if model is None else f"the model {model!r}"
    raise NotPermitted(f"This API key may not ask for {named}; {may}.", param="model")


def bounded(permits: Permits, path: str, asked: Asked, body: bytes, prompt: int) -> tuple[Asked, bytes]:
    """A request whose answer is as short as its key wants it.

    A bound of its own that is higher is refused: it would not be what its client has asked for.

    Raises InvalidParameter, ContextLengthExceeded, NotPermitted.
    """
    context, most = permits.max_context_tokens, permits.max_output_tokens
    if context is not None and prompt >= context:
        raise ContextLengthExceeded(
            f"The prompt has {prompt} tokens, and this API key may use {context} for prompt and answer; send less."
        )
    if path == _UNBOUNDED and (context is not None or most is not None):
        raise NotPermitted(
            f"This API key has a bound on the tokens of answers, which {path} cannot be told; send the text to "
            "/v1/completions as the prompt."
        )
    if path not in BOUNDS or (context is None and most is None):
        return asked, body
    field, own = asked.bound(path) or (BOUNDS[path][0], None)
    if most is not None and own is not None and own > most:
        raise InvalidParameter(field, f"is {own}, more than the {most} tokens of an answer that this API key may have.")
    if context is not None and own is not None and prompt + own > context:
        raise ContextLengthExceeded(
            f"The prompt has {prompt} tokens and the answer may have {own}, more than the {context} that this API key "
            f"may use for both; ask for at most {context - prompt}."
        )
    if own is not None:
        return asked, body
    bound = min(each for each in (most, None if context is None else context - prompt) if each is not None)
    fields: dict[str, Any] = _decode(body)
    return msgspec.structs.replace(asked, **{field: bound}), msgspec.json.encode({**fields, field: bound})
