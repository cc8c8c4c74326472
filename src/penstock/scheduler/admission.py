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
        max_beams: most beams of a request, which run at a time; 0: none can have any.
        max_source: most tokens of a source; None where the model has no sources.
    """

    spec: KVSpec
    num_blocks: int
    max_model_len: int
    max_chunk: int
    kv_policies: PolicyLimits = PolicyLimits()
    generates: bool = True
    max_beams: int = 0
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
        # A batch that is filled once has no room for what forks later.
        0 if config.static_batching else config.max_num_seqs,
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
    beam, source = request.sampling.beam if request.pooling is None else None, len(request.source)
    if beam is not None:
        _check_beams(beam.width, prompt + output - 1, source, limits)
        return
    # The last token of an output is returned but its KV is never computed.
    most = None if policy is None or policy.kind == "snapkv" else policy.tokens
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


def _check_beams(width: int, tokens: int, source: int, limits: Limits) -> None:
    """Raise RequestError where a request's beams cannot all run, each with these tokens, and those of its source."""
    if not limits.max_beams:
        raise InvalidParameter(
            "use_beam_search", "this engine fills a batch once (static batching), and beams fork later."
        )
    if width > limits.max_beams:
        raise InvalidParameter(
            "use_beam_search",
            f"{width} beams run at a time, and this server's batch has {limits.max_beams} sequences (--max-num-seqs); "
            "ask for fewer beams.",
        )
    # Beside its own, each may need a copy of what it shares. How much that is, is not known beforehand.
    needed = width * (limits.spec.blocks_for(tokens, limits.max_chunk, None, source) + limits.spec.num_tables)
    if needed > limits.num_blocks:
        raise RequestTooLarge(
            f"The request needs up to {needed} KV blocks ({width} beams of {source + tokens} tokens) and the pool has "
            f"{limits.num_blocks}: lower max_tokens, ask for fewer beams, or start the server with a larger "
            "--kv-cache-memory."
        )
