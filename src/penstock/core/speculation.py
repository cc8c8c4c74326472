"""Who drafts tokens and how many: what a user may ask for, and what that means for a model."""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.core.kv import KVSpec

ACCEPTANCES = ("coupled", "rejection")
SPECULATIVE = ("off", "auto", "ngram", "draft", "chain", "self", "medusa", "eagle")
Proposer = Literal["ngram", "draft", "either", "chain", "self", "medusa", "eagle"]
# Those that are a checkpoint of their own, and what it holds.
CHECKPOINTS = {
    "draft": "a model that drafts",
    "chain": "a model that drafts",
    "medusa": "Medusa heads",
    "eagle": "an EAGLE head",
}
# Those that are no models, but heads on the target's hidden states.
HEADS = ("medusa", "eagle")
# Those that can draft trees.
TREES = ("ngram", "draft", "either", "self", "medusa", "eagle")
_WITH_TREES = ", ".join(name for name in SPECULATIVE if name in TREES)
# The most tokens drafted for a sequence in one step, one behind the other: where measurements decide, and where the
# user does.
DRAFT_DEPTH = 8
DEEPEST_DRAFT = 32
# The most tokens beside these, in other branches, where measurements decide; and the most branches of one step.
DRAFT_WIDTH = 8
MOST_BRANCHES = 32
# Tokens that are named for one place in a draft; one of them stands in the likeliest branch.
RANKS = 4

# Tokens of finished outputs: 2.6 GiB, at the 164 bytes that one was measured to take with its index.
MOST_REMEMBERED = 2**24

Note = Callable[[str, object, str], None]


class DraftModelConfig(msgspec.Struct, frozen=True):
    """A model that drafts, or heads that do so from the target's hidden states.

    Attributes:
        path: its directory.
        quantization: what its weights are rounded to when they are loaded.
        spec: what it keeps in the target's KV blocks; None: nothing.
        most: tokens that it can draft at a time; None: any number.
    """

    path: str
    quantization: str
    spec: KVSpec | None
    most: int | None = None


class SpeculationConfig(msgspec.Struct, frozen=True):
    """Who drafts.

    Attributes:
        proposer: "ngram" the sequence's own text, "draft" another model, "either" that or the text, "chain" another
            model that has a proposer of its own, "self" the first layers of the same one, "medusa" and "eagle" heads
            on its hidden states.
        draft: the other model, or the heads.
        chain: a third model, which drafts for the other one; None in a chain: the sequence's own text does.
        layers: how many layers of the same one.
        rejects: drafts are accepted by rejection sampling, which keeps the distribution of what comes out and no more.
        remembers: tokens of finished outputs that are kept, for text to draft from.
    """

    proposer: Proposer
    draft: DraftModelConfig | None = None
    chain: DraftModelConfig | None = None
    layers: int = 0
    rejects: bool = False
    remembers: int = 0

    @property
    def by_text(self) -> bool:
        """Whether text drafts, alone or beside others."""
        return self.proposer in ("ngram", "either") or (self.proposer == "chain" and self.chain is None)


class SpeculationOptions(msgspec.Struct, frozen=True):
    """As the user gave them; see `EngineOptions`."""

    proposer: str = "auto"
    depth: int | None = None
    draft_model: str | None = None
    draft_quantization: str = "auto"
    layers: int | None = None
    acceptance: str = "coupled"
    chain_model: str | None = None
    width: int | None = None
    memory: int = 0

    def check(self, layers: int) -> None:
        """Raise ConfigurationError where they are none, or contradict one another or a model of `layers` layers."""
        asked, depth = self.proposer, self.depth
        if asked not in SPECULATIVE:
            raise ConfigurationError(f"--speculative {asked} is not one of {', '.join(SPECULATIVE)}.")
        if depth is not None and (type(depth) is not int or not 1 <= depth <= DEEPEST_DRAFT):
            raise ConfigurationError(
                f"--speculative-depth is {depth!r}; it must be a whole number from 1 to {DEEPEST_DRAFT}."
            )
        if self.width is not None:
            self._check_width(self.width)
        if self.acceptance not in ACCEPTANCES:
            raise ConfigurationError(
                f"--speculative-acceptance {self.acceptance} is not one of {', '.join(ACCEPTANCES)}."
            )
        if type(self.memory) is not int or not 0 <= self.memory <= MOST_REMEMBERED:
            raise ConfigurationError(
                f"--speculative-memory is {self.memory!r}; it must be a whole number up to {MOST_REMEMBERED}."
            )
        if asked == "off" and self.acceptance != "coupled":
            raise ConfigurationError("--speculative-acceptance says how drafts are accepted, but --speculative is off.")
        if asked == "off" and self.memory:
            raise ConfigurationError("--speculative-memory is of drafts, but --speculative is off.")
        if asked == "off" and depth is not None:
            raise ConfigurationError("--speculative-depth says how many tokens are drafted, but --speculative is off.")
        for option, given in (
            ("--draft-model", self.draft_model is not None),
            ("--draft-quantization", self.draft_quantization != "auto"),
        ):
            if given and asked not in ("auto", *CHECKPOINTS):
                raise ConfigurationError(
                    f"{option} is of no use with --speculative {asked}; it goes with {', '.join(CHECKPOINTS)}."
                )
        if self.chain_model is not None and asked != "chain":
            raise ConfigurationError(f"--chain-model is of no use with --speculative {asked}; it goes with chain.")
        if self.layers is not None and asked != "self":
            raise ConfigurationError(
                f"--speculative-layers is of no use with --speculative {asked}; it goes with self."
            )
        if self.layers is not None and (type(self.layers) is not int or not 1 <= self.layers < layers):
            raise ConfigurationError(
                f"--speculative-layers is {self.layers!r}; it must be a whole number from 1 to {layers - 1}, since the "
                f"model has {layers} layers."
            )

    def _check_width(self, width: int) -> None:
        if type(width) is not int or not 1 <= width <= MOST_BRANCHES:
            raise ConfigurationError(
                f"--speculative-width is {width!r}; it must be a whole number from 1 to {MOST_BRANCHES}."
            )
        if self.proposer == "off":
            raise ConfigurationError("--speculative-width says how many more are drafted, but --speculative is off.")
        if self.depth is None:
            raise ConfigurationError(
                "--speculative-width goes with --speculative-depth; without both, drafts are as deep and wide as pays."
            )
        if self.acceptance != "coupled":
            raise ConfigurationError(
                f"--speculative-width is of no use with --speculative-acceptance {self.acceptance}, which judges one "
                "draft after the other; trees go with coupled."
            )


def blocks_of_branches(depth: int, block_size: int, groups: int) -> int:
    """Blocks for all branches of a step, beside the pool."""
    return MOST_BRANCHES * groups * blocks_of_branch(depth, block_size)


def blocks_of_branch(depth: int, block_size: int) -> int:
    """Blocks of one KV group that the newest token and `depth` drafts behind it may reach into."""
    return (depth + block_size - 1) // block_size + 1


def resolve_speculation(
    options: SpeculationOptions, drafts: Sequence[DraftModelConfig], layers: int, note: Note, *, exact: bool = True
) -> tuple[SpeculationConfig | None, int, int]:
    """Who drafts for a model of `layers` layers, the most tokens one behind the other, and the most beside them.

    `drafts` are the model that was asked for, or that belongs to the target, and the one that drafts for it, where they
    are. Without kernels that are `exact` nothing drafts unless asked to. Raises ConfigurationError.
    """
    options.check(layers)
    draft, chain = [*drafts, None, None][:2]
    depth, own = options.depth, options.layers or max(1, layers // 2)
    rejects = options.acceptance == "rejection"
    _note_models(options, draft, chain, note)
    kept = "each token is what it would be without drafts"
    if rejects:
        kept = "as asked: sampled outputs keep their distribution, not their tokens: a seed gives one text no more"
    note("speculative acceptance", options.acceptance, kept)
    note("speculative layers", own, f"of {layers}; with --speculative self, they draft")
    unasked = not exact and options == SpeculationOptions()
    if options.proposer == "off" or unasked:
        without = "without native kernels drafts could change a token near a tie; ask for them if that is no matter"
        note("speculative", "off", without if unasked else "each step gives a sequence one token")
        note("speculative depth", 0, "nothing is drafted")
        note("speculative width", 0, "nothing is drafted")
        note("speculative memory", 0, "nothing is drafted")
        return None, 0, 0
    config, who = _who_drafts(options.proposer, draft, chain, own)
    unchanged = "drafts never change " + ("how likely what comes out is" if rejects else "what comes out")
    note("speculative", options.proposer, f"{who}; {unchanged}")
    most = DRAFT_DEPTH if draft is None or draft.most is None else min(draft.most, DRAFT_DEPTH)
    if depth is not None and draft is not None and draft.most is not None and depth > draft.most:
        raise ConfigurationError(
            f"--speculative-depth {depth} is more than the {draft.most} heads draft, one token each."
        )
    measured = f"the number that pays on this machine, at most {most}"
    note("speculative depth", depth or "auto", measured if depth is None else "as asked, always")
    width = _width(options, config.proposer, note)
    if options.memory and not config.by_text:
        raise ConfigurationError(
            f"--speculative-memory is of no use with --speculative {options.proposer}, where no text drafts."
        )
    kept = "tokens, from what requests of the same cache salt have said, drafts come from too"
    note("speculative memory", options.memory, kept if options.memory else "drafts from text come from a request's own")
    return msgspec.structs.replace(config, rejects=rejects, remembers=options.memory), depth or most, width


def _width(options: SpeculationOptions, proposer: Proposer, note: Note) -> int:
    """How many tokens at most are drafted in other branches than the likeliest."""
    if options.width is not None:
        if proposer not in TREES:
            raise ConfigurationError(
                f"--speculative-width is of no use with --speculative {options.proposer}; "
                f"trees are drafted by {_WITH_TREES}."
            )
        # The text has one other branch, no longer than the likeliest; behind a model's second choices nothing stands.
        most = (options.depth or 0) * (1 if proposer == "ngram" else RANKS - 1)
        if proposer != "medusa" and options.width > most:
            raise ConfigurationError(
                f"--speculative-width {options.width} is more than the {most} that {proposer} can draft beside "
                f"{options.depth} tokens."
            )
        note("speculative width", options.width, "as asked: tokens in other branches")
        return options.width
    if proposer not in TREES or options.acceptance != "coupled":
        why = f"trees are drafted by {_WITH_TREES}, and accepted coupled"
    elif options.depth is not None:
        why = "each draft is one chain, as deep as asked"
    else:
        measured = f"the number that pays on this machine, at most {DRAFT_WIDTH} in other branches"
        note("speculative width", "auto", measured)
        return DRAFT_WIDTH
    note("speculative width", 0, why)
    return 0


def _note_models(
    options: SpeculationOptions, draft: DraftModelConfig | None, chain: DraftModelConfig | None, note: Note
) -> None:
    source = "none is asked for, and none belongs to the model"
    if draft is not None:
        source = "as asked" if options.draft_model else "it belongs to the model"
    note("draft model", "none" if draft is None else draft.path, source)
    rounding = "as asked"
    if options.draft_quantization == "auto":
        rounding = "as the checkpoint has them"
        if draft is not None and draft.quantization == "int8":
            rounding = "since a draft may be wrong and has to be made soon"
    rounded = "none" if draft is None else draft.quantization
    note("draft quantization", rounded, f"of the weights of those that draft, {rounding}")
    if chain is None:
        note("chain model", "none", "in a chain, the sequence's own text drafts for the draft model")
    else:
        note("chain model", chain.path, "as asked: it drafts for the draft model")


def _who_drafts(
    asked: str, draft: DraftModelConfig | None, chain: DraftModelConfig | None, layers: int
) -> tuple[SpeculationConfig, str]:
    """Who drafts, and in words. Raises ConfigurationError where the model that is to draft is missing."""
    match asked:
        case "self":
            return SpeculationConfig("self", layers=layers), f"as asked: the first {layers} layers draft"
        case "draft" if draft is not None:
            return SpeculationConfig("draft", draft), "the draft model drafts"
        case "auto" if draft is not None:
            who = "the draft model drafts, or the sequence's own text where that has been right as often"
            return SpeculationConfig("either", draft), who
        case "chain" if draft is not None:
            return SpeculationConfig("chain", draft, chain), "the draft model drafts, and a cheaper source for it"
        case "medusa" | "eagle" if draft is not None:
            return SpeculationConfig(asked, draft), "heads on the model's hidden states draft"
        case "draft" | "chain" | "medusa" | "eagle":
            raise ConfigurationError(f"--speculative {asked} needs {CHECKPOINTS[asked]}; say where with --draft-model.")
        case _:
            return SpeculationConfig("ngram"), "drafts come from the sequence's own text, at next to no cost"
