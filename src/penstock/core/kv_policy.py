"""How a request bounds what it holds of its context, where it is willing to have tokens forgotten."""

from typing import Literal, get_args

import msgspec

PolicyKind = Literal["window", "h2o", "scissorhands", "snapkv"]
POLICY_KINDS: tuple[PolicyKind, ...] = get_args(PolicyKind)
# Whose choice follows attention.
WEIGHED: tuple[PolicyKind, ...] = ("h2o", "scissorhands", "snapkv")


class KVPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which keys and values a request keeps where it has more tokens than it may hold.

    Whole blocks are dropped, the same in all layers that see everything; layers with a window keep what that says.
    What is computed after that depends on when blocks were dropped, so it is not the same bits in every batch.

    Attributes:
        kind: what goes first.
            `window`: the oldest behind the sinks; positions are those in the cache (Xiao et al., Efficient Streaming
            Language Models with Attention Sinks, ICLR 2024, section 3.2).
            `h2o`: what got the least attention of all that came behind it (Zhang et al., H2O: Heavy-Hitter Oracle,
            NeurIPS 2023, section 4).
            `scissorhands`: what has got little attention for the longest, and what has got little for `patience` steps
            (Liu et al., Scissorhands, NeurIPS 2023, section 4).
            `snapkv`: once, at the prompt's end, what the prompt's last `recent` tokens attend to the least (Li et al.,
            SnapKV, NeurIPS 2024, section 4); outputs are all kept.
        tokens: most tokens whose keys and values are held; of `snapkv`, of the prompt.
        sinks: the first tokens, which are never dropped.
        recent: the last ones, which are not either; `window` keeps all that it has room for.
        patience: steps, of `scissorhands`.
    """

    kind: PolicyKind
    tokens: int
    sinks: int = 16
    recent: int = 128
    patience: int = 400
