"""Who drafts tokens and how many: what the options of speculative decoding mean for a model."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from penstock.configuration.options import SpeculationOptions
from penstock.configuration.reasons import Note
from penstock.core.errors import ConfigurationError
from penstock.core.speculation import MOST_BRANCHES, RANKS, DraftModelConfig, Proposer, SpeculationConfig

ACCEPTANCES = ("coupled", "rejection")
SPECULATIVE = ("off", "auto", "ngram", "draft", "chain", "self", "medusa", "eagle")
_DRAFTING = tuple(name for name in SPECULATIVE if name != "off")
# Those that are a checkpoint of their own, and what it holds.
CHECKPOINTS: Mapping[str, str] = MappingProxyType(
    {
        "draft": "a model that drafts",
        "chain": "a model that drafts",
        "medusa": "Medusa heads",
        "eagle": "an EAGLE head",
    }
)
# Those that are no models, but heads on the target's hidden states.
HEADS = ("medusa", "eagle")
# Those that can draft trees.
TREES = ("ngram", "draft", "either", "self", "medusa", "eagle")
_WITH_TREES = ", ".join(name for name in SPECULATIVE if name in TREES)
# The most tokens drafted for a sequence in one step, one behind the other: where measurements decide, and where the
# user does.
DRAFT_DEPTH = 8
DEEPEST_DRAFT = 32
# The most tokens beside these, in other branches, where measurements decide.
DRAFT_WIDTH = 8

# Tokens of finished outputs: 2.6 GiB, at the 164 bytes that one was measured to take with its index.
MOST_REMEMBERED = 2**24


class _Rule(NamedTuple):
    """What a value of an option may be (None: anything), and the proposers with which the option is of use."""

    option: str
    field: str
    values: range | tuple[str, ...] | None
    proposers: tuple[str, ...]


_RULES = (
    _Rule("--speculative", "proposer", SPECULATIVE, SPECULATIVE),
    _Rule("--speculative-depth", "depth", range(1, DEEPEST_DRAFT + 1), _DRAFTING),
    _Rule("--speculative-width", "width", range(1, MOST_BRANCHES + 1), _DRAFTING),
    _Rule("--speculative-acceptance", "acceptance", ACCEPTANCES, _DRAFTING),
    _Rule("--speculative-memory", "memory", range(MOST_REMEMBERED + 1), _DRAFTING),
    _Rule("--draft-model", "draft_model", None, ("auto", *CHECKPOINTS)),
    _Rule("--draft-quantization", "draft_quantization", None, ("auto", *CHECKPOINTS)),
    _Rule("--chain-model", "chain_model", None, ("chain",)),
    _Rule("--speculative-layers", "layers", None, ("self",)),
)
_DEFAULTS = SpeculationOptions()


def check_speculation(options: SpeculationOptions, layers: int) -> None:
    """Raise ConfigurationError where a value is none, or options contradict one another or a model of `layers` layers.

    Options that have their default are not judged.
    """
    for rule in _RULES:
        value, default = getattr(options, rule.field), getattr(_DEFAULTS, rule.field)
        if type(value) is type(default) and value == default:
            continue
        match rule.values:
            case range() as numbers:
                _check_number(rule.option, value, numbers)
            case tuple() as names if value not in names:
                raise ConfigurationError(f"{rule.option} {value} is not one of {', '.join(names)}.")
        if options.proposer in rule.proposers:
            continue
        if options.proposer == "off":
            raise ConfigurationError(f"{rule.option} is of no use: --speculative is off, so nothing drafts.")
        raise ConfigurationError(
            f"{rule.option} is of no use with --speculative {options.proposer}; it goes with "
            f"{', '.join(rule.proposers)}."
        )
    if options.layers is not None and layers < 2:
        raise ConfigurationError("--speculative-layers is of no use here: the model has one layer.")
    if options.layers is not None:
        _check_number("--speculative-layers", options.layers, range(1, layers), f"the model has {layers} layers")
    if options.width is not None and options.depth is None:
        raise ConfigurationError(
            "--speculative-width goes with --speculative-depth; without both, drafts are as deep and wide as pays."
        )
    if options.width is not None and options.acceptance != "coupled":
        raise ConfigurationError(
            f"--speculative-width is of no use with --speculative-acceptance {options.acceptance}, which judges one "
            "draft after the other; trees go with coupled."
        )


def _check_number(option: str, value: object, allowed: range, why: str = "") -> None:
    if type(value) is not int or value not in allowed:
        since = f", since {why}" if why else ""
        raise ConfigurationError(
            f"{option} is {value!r}; it must be a whole number from {allowed[0]} to {allowed[-1]}{since}."
        )


def resolve_speculation(
    options: SpeculationOptions, drafts: Sequence[DraftModelConfig], layers: int, note: Note, *, exact: bool = True
) -> tuple[SpeculationConfig | None, int, int]:
    """Who drafts for a model of `layers` layers, the most tokens one behind the other, and the most beside them.

    `drafts` are the model that was asked for, or that belongs to the target, and the one that drafts for it, where they
    are. Without kernels that are `exact` nothing drafts unless asked to. Raises ConfigurationError.
    """
    check_speculation(options, layers)
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
