"""What can be refused at once, by the engine and by every client that holds the same limits."""

import msgspec

from penstock.core.config import SchedulerConfig
from penstock.core.errors import ContextLengthExceeded, InvalidParameter, RequestTooLarge
from penstock.core.kv import KVSpec
from penstock.core.kv_policy import PolicyLimits
from penstock.core.request import Request


class Limits(msgspec.Struct, frozen=True):
    """What no request may exceed.

    Attributes:
        spec: geometry of the KV cache.
        num_blocks: size of its pool.
        max_model_len: most tokens of prompt and output together.
        max_chunk: most positions that one step computes.
        kv_policies: how requests can bound what they hold of their contexts.
        generates: whether requests can ask for tokens; else they ask for vectors.
        max_source: most tokens of a source; None where the model has no sources.
    """

    spec: KVSpec
    num_blocks: int
    max_model_len: int
    max_chunk: int
    kv_policies: PolicyLimits = PolicyLimits()
    generates: bool = True
    max_source: int | None = None


def limits_of(config: SchedulerConfig, spec: KVSpec, num_blocks: int) -> Limits:
    """Those of a scheduler with a pool of this geometry and size."""
    return Limits(
        spec,
        num_blocks,
        config.max_model_len,
        config.max_num_batched_tokens,
        config.kv_policies,
        config.generates,
        config.max_source,
    )


def check_request(request: Request, limits: Limits) -> None:
    """Raise RequestError, with the numbers, where `request` could never be served."""
    prompt, output = len(request.prompt_token_ids), request.max_tokens
    if prompt == 0:
        raise InvalidParameter("prompt", "it is empty; at least one token is needed.")
    if output is None:
        raise ValueError("max_tokens must be resolved before a request reaches the scheduler")
    _check_source(len(request.source), limits.max_source)
    policy = request.kv_policy
    longest = limits.max_model_len if policy is None else policy.longest(limits.max_model_len)
    if prompt + output > longest:
        begun = "The decoder begins with" if request.source else "The prompt has"
        raise ContextLengthExceeded(
            f"{begun} {prompt} tokens and up to {output} output tokens are asked for, together "
            f"{prompt + output}; this server's context is {longest} tokens (max_model_len).",
            param="max_tokens" if prompt < longest else "prompt",
        )
    # The last token of an output is returned but its KV is never computed.
    most = None if policy is None or policy.kind == "snapkv" else policy.tokens
    source = len(request.source)
    needed = limits.spec.blocks_for(prompt + max(output, 1) - 1, limits.max_chunk, most, source)
    if needed > limits.num_blocks:
        raise RequestTooLarge(
            f"The request needs up to {needed} KV blocks ({source or prompt} prompt and {output} output tokens) and "
            f"the pool has {limits.num_blocks}: lower max_tokens, or start the server with a larger --kv-cache-memory."
        )


def _check_source(tokens: int, most: int | None) -> None:
    """Raise RequestError unless a source of this number of tokens can be read."""
    if most is None:
        if tokens:
            raise InvalidParameter("prompt", "it cannot be a source: this model has no encoder.")
        return
    if not tokens:
        raise InvalidParameter("prompt", "it is empty; at least one token is needed.")
    if tokens > most:
        raise ContextLengthExceeded(
            f"The prompt has {tokens} tokens, and this model's encoder reads at most {most}.", param="prompt"
        )
