"""What an executor is made of, part by part: each is given to it, and none is chosen by it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.core.plan import BeginRow
from penstock.runtime.pool import LENGTH_ONE
from penstock.runtime.pooling import VectorsOf
from penstock.runtime.tiers import Tiers
from penstock.sampling.row import RowState
from penstock.sampling.sampler import Sampler
from penstock.speculation.branches import Branches
from penstock.speculation.proposer import Proposer
from penstock.stepping.model import Model
from penstock.stepping.storage import PoolStorage
from penstock.stepping.tables import BlockTables


@dataclass(frozen=True, slots=True, eq=False)
class Computing:
    """What computes logits and hidden states.

    Attributes:
        model: computes a step's logits.
        storage: where its keys and values are.
        tables: in which blocks each row's are.
        encoder: makes the model whose result is hidden states; called once, when the first are asked for.
        vectors_of: makes the vectors of texts from what is pooled of these.
        reader: stores the keys and values of sources; None where the model has no sources.
        staged: whether steps go through the stages of a pipeline, so that several are under way.
    """

    model: Model
    storage: PoolStorage
    tables: BlockTables
    encoder: Callable[[], Model]
    vectors_of: VectorsOf = LENGTH_ONE
    reader: Model | None = None
    staged: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Choosing:
    """What chooses tokens.

    Attributes:
        sampler: chooses them from logits.
        begin: (sequence, its prompt) → what is kept of it between steps.
    """

    sampler: Sampler
    begin: Callable[[BeginRow, Sequence[int]], RowState]


@dataclass(frozen=True, slots=True, eq=False)
class Drafting:
    """What drafts tokens.

    Attributes:
        proposer: drafts what plans allow to be drafted.
        branches: where branches of trees of drafts are computed.
        rejects: drafts are accepted by rejection sampling, not coupled; see `speculation/verifier.py`.
    """

    proposer: Proposer
    branches: Branches
    rejects: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ExecutorParts:
    """All of them; without `drafting`, nothing is drafted, and without `tiers` nothing is kept beyond the pool."""

    computing: Computing
    choosing: Choosing
    drafting: Drafting | None = None
    tiers: Tiers | None = None
