"""What can be refused at once, by the engine and by every client that holds the same limits."""

import msgspec

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
    """

    spec: KVSpec
    num_blocks: int
    max_model_len: int
    max_chunk: int
    kv_policies: PolicyLimits = PolicyLimits()
    generates: bool = True


def check_request(request: Request, limits: Limits) -> None:
    """Raise RequestError, with the numbers, where `request` could never be served."""
    prompt, output = len(request.prompt_token_ids), request.max_tokens
    if prompt == 0:
        raise InvalidParameter("prompt", "it is empty; at least one token is needed.")
    if output is None:
        raise ValueError("max_tokens must be resolved before a request reaches the scheduler")
    policy = request.kv_policy
    longest = limits.max_model_len if policy is None else policy.longest(limits.max_model_len)
    if prompt + output > longest:
        raise ContextLengthExceeded(
            f"The prompt has {prompt} tokens and up to {output} output tokens are asked for, together "
            f"{prompt + output}; this server's context is {longest} tokens (max_model_len).",
            param="max_tokens" if prompt < longest else "prompt",
        )
    # The last token of an output is returned but its KV is never computed.
    most = None if policy is None or policy.kind == "snapkv" else policy.tokens
    needed = limits.spec.blocks_for(prompt + max(output, 1) - 1, limits.max_chunk, most)
    if needed > limits.num_blocks:
        raise RequestTooLarge(
            f"The request needs up to {needed} KV blocks ({prompt} prompt and {output} output tokens) and the pool has "
            f"{limits.num_blocks}: lower max_tokens, or start the server with a larger --kv-cache-memory."
        )
