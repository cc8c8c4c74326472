"""What an operation must do at least: bytes that are read and written, products and sums. Pure arithmetic on a case."""

from penstock.kernels.cases import Case
from penstock.kernels.signature import (
    Attention,
    Embedding,
    Experts,
    HeadLinear,
    HeadNorm,
    Linear,
    Positions,
    QueryScale,
    Rotary,
    Route,
    RowAttention,
    SelectRows,
    SourceAttention,
    WriteKV,
)

# Values between operations are float32 on a CPU.
_VALUE = 4


def activation_bytes(case: Case, value: int = _VALUE) -> int:
    """Bytes of what a case reads and writes, in `value` bytes each; of the fused projection only what it uses."""
    operation, tokens = case.operation, case.tokens
    match operation:
        case HeadNorm() | Rotary() | QueryScale():
            columns = 2 * (operation.heads.query_width + operation.heads.kv_width)
        case WriteKV():
            columns = (1 if operation.heads.latent else 2) * operation.heads.kv_width
        case Attention() | SourceAttention():
            columns = 2 * operation.heads.query_width
        case SelectRows():
            return 2 * value * len(case.wanted) * case.widths[0]
        case _:
            columns = sum(case.widths) + sum(case.output_widths)
    return value * tokens * columns


def kv_bytes(case: Case, value: int) -> int:
    """Bytes of keys and values of `value` bytes each: those that WriteKV stores and those that attention sees."""
    match case.operation:
        case WriteKV(heads):
            positions = case.tokens
        case Attention(heads, window=window):
            positions = sum(
                context if window is None else min(context, window - 1 + added) for added, context in case.rows
            )
        case SourceAttention(heads):
            positions = sum(case.sources)
        case _:
            return 0
    return (1 if heads.latent else 2) * heads.kv_width * value * positions


def weight_bytes(case: Case, matrix: int, value: int = _VALUE) -> int:
    """Bytes of weights that are read, `matrix` being those of a case's packed matrices; an embedding reads rows of it.

    Of experts those are read that rows have, on average.

    Those of norms, and angles, are in `value` bytes each.
    """
    match case.operation:
        case Linear() | HeadLinear() | Route():
            return matrix
        case Experts(experts=experts):
            return round(matrix * (1 - (1 - case.widths[1] / 2 / experts) ** case.tokens))
        case Embedding(weight):
            return case.tokens * matrix // case.weights[weight.name][0]
        case Positions(weight):
            return value * case.tokens * case.weights[weight.name][1]
        case Rotary(rope=rope):
            return value * case.tokens * 2 * rope.head_dim
        case _:
            return value * sum(shape[0] for shape in case.weights.values())


def arithmetic(case: Case) -> int:
    """Products and sums of matrix products, each product being two with its sum; 0 for operations without them.

    Attention multiplies every query with the keys that it sees, and the weights with their values.
    """
    match case.operation:
        case Linear(weight) | HeadLinear(weight) | Route(weight):
            outputs, inputs = case.weights[weight.name]
            return 2 * case.tokens * outputs * inputs
        case Experts(experts=experts):
            own = sum(outputs * inputs for outputs, inputs in case.weights.values()) // experts
            return case.tokens * case.widths[1] * own
        case Attention(heads, window=window):
            return 4 * heads.query_width * sum(_seen(added, context, window) for added, context in case.rows)
        case SourceAttention(heads):
            seen = (added * source for (added, _), source in zip(case.rows, case.sources, strict=True))
            return 4 * heads.query_width * sum(seen)
        case RowAttention(heads, window=window):
            return 4 * heads.query_width * sum(_pairs(added, window) for added, _ in case.rows)
        case _:
            return 0


def _pairs(tokens: int, window: int | None) -> int:
    """How many tokens those of a row see on both sides, all together."""
    if window is None:
        return tokens * tokens
    return sum(min(tokens, token + window) - max(0, token - window + 1) for token in range(tokens))


def _seen(added: int, context: int, window: int | None) -> int:
    """How many positions the last `added` tokens of a context see, all together."""
    counts = range(context - added + 1, context + 1)
    return sum(counts) if window is None else sum(min(count, window) for count in counts)
