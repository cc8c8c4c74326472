"""What drafts bring: tokens of a step that verifies them, and how much faster a deployment decodes.

The formulas are those of Leviathan et al., "Fast inference from transformers via speculative decoding", ICML 2023.
"""

from penstock.planning.efficiency import Efficiency
from penstock.planning.latency import Deployment, Rows, decode_step, step_time


def expected_tokens(acceptance: float, depth: float) -> float:
    """Tokens that a sequence gains in a step which verifies `depth` drafts, in the mean.

    Each draft is right with probability `acceptance`, and the step's own token comes behind the drafts that are kept:
    (1 - a^(K+1)) / (1 - a), equation 1 of section 3.1.
    """
    return depth + 1 if acceptance >= 1 else (1 - acceptance ** (depth + 1)) / (1 - acceptance)


def speedup(acceptance: float, depth: float, draft_cost: float, verify_cost: float = 1.0) -> float:
    """How many times faster a sequence grows than without drafts (theorem 3.8, which takes a verification as one step).

    `draft_cost`, `verify_cost`: the time of drafting one token, and of the step that verifies all, in steps without
    drafts.
    """
    return expected_tokens(acceptance, depth) / (verify_cost + depth * draft_cost)


def draft_gain(
    target: Deployment,
    drafter: Deployment,
    efficiency: Efficiency,
    rows: float,
    context: float,
    acceptance: float,
    depth: float,
) -> float:
    """The speed-up of `rows` sequences with `context` tokens each, for which a second model on the same device drafts.

    Below 1, drafts cost more than they bring: each is a token to multiply by, which is free only where a step waits for
    its weights.
    """
    plain = decode_step(target, efficiency, rows, context).seconds
    verified = step_time(target, efficiency, Rows(rows, context, drafts=depth)).seconds
    drafted = decode_step(drafter, efficiency, rows, context).seconds
    return speedup(acceptance, depth, drafted / plain, verified / plain)
