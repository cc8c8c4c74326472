"""Which options of speculation go together, and what they mean."""

from typing import Any

import pytest

from penstock.configuration.options import SpeculationOptions
from penstock.configuration.speculation import DRAFT_DEPTH, DRAFT_WIDTH, resolve_speculation
from penstock.core.errors import ConfigurationError
from penstock.core.kv import LayerKV, build_kv_spec
from penstock.core.speculation import DraftModelConfig, SpeculationConfig

SMALLER = DraftModelConfig("/smaller", "none", build_kv_spec([LayerKV(1, 8)], "float32"))
DRAFT = DraftModelConfig("/draft", "none", build_kv_spec([LayerKV(1, 16)], "float32"))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"proposer": "eagle"}, "--speculative eagle"),
        ({"proposer": "off", "depth": 2}, "--speculative is off"),
        ({"proposer": "ngram", "depth": 0}, "--speculative-depth is 0"),
        ({"proposer": "ngram", "depth": 33}, "from 1 to 32"),
        ({"proposer": "ngram", "draft_model": "/draft"}, "--draft-model"),
        ({"proposer": "self", "draft_quantization": "int4"}, "--draft-quantization"),
        ({"proposer": "draft", "layers": 2}, "--speculative-layers"),
        ({"proposer": "self", "layers": 6}, "from 1 to 5"),
        ({"proposer": "draft", "chain_model": "/smaller"}, "--chain-model"),
        ({"proposer": "chain"}, "--draft-model"),
        ({"proposer": "ngram", "depth": 3, "width": 0}, "--speculative-width is 0"),
        ({"proposer": "ngram", "depth": 3, "width": 33}, "from 1 to 32"),
        ({"proposer": "ngram", "depth": 3, "width": 4}, "more than the 3 that ngram can draft"),
        ({"proposer": "self", "depth": 2, "width": 7}, "more than the 6 that self can draft beside 2 tokens"),
        ({"proposer": "off", "width": 2}, "--speculative is off"),
        ({"proposer": "ngram", "width": 2}, "goes with --speculative-depth"),
        ({"proposer": "ngram", "depth": 3, "width": 2, "acceptance": "rejection"}, "trees go with coupled"),
        ({"proposer": "ngram", "memory": -1}, "--speculative-memory is -1"),
        ({"proposer": "ngram", "memory": 2**24 + 1}, "from 0 to 16777216"),
        ({"proposer": "off", "memory": 10}, "--speculative is off"),
        ({"proposer": "self", "memory": 10}, "no use with --speculative self"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        resolve_speculation(SpeculationOptions(**options), (), 6, lambda *_: None)


@pytest.mark.parametrize(
    ("asked", "drafts", "expected"),
    [
        ("off", (), None),
        ("off", (DRAFT,), None),
        ("ngram", (), SpeculationConfig("ngram")),
        ("self", (), SpeculationConfig("self", layers=3)),
        ("draft", (DRAFT,), SpeculationConfig("draft", DRAFT)),
        ("chain", (DRAFT,), SpeculationConfig("chain", DRAFT)),
        ("chain", (DRAFT, SMALLER), SpeculationConfig("chain", DRAFT, SMALLER)),
        ("auto", (DRAFT,), SpeculationConfig("either", DRAFT)),
        ("auto", (), SpeculationConfig("ngram")),
    ],
)
def test_who_drafts(asked: str, drafts: tuple[DraftModelConfig, ...], expected: SpeculationConfig | None) -> None:
    notes: dict[str, str] = {}
    options = SpeculationOptions(asked)
    config, depth, width = resolve_speculation(options, drafts, 6, lambda name, value, why: notes.update({name: why}))
    assert config == expected and depth == (DRAFT_DEPTH if expected else 0)
    assert width == (DRAFT_WIDTH if expected and expected.proposer != "chain" else 0)
    assert all(notes.values()) and "speculative" in notes


def test_nobody_drafts_unasked_where_that_could_change_a_token() -> None:
    notes: dict[str, tuple[str, str]] = {}

    def resolved(options: SpeculationOptions) -> SpeculationConfig | None:
        return resolve_speculation(
            options, (), 6, lambda name, value, why: notes.update({name: (str(value), why)}), exact=False
        )[0]

    assert resolved(SpeculationOptions()) is None
    assert notes["speculative"][0] == "off" and "native kernels" in notes["speculative"][1]
    assert resolved(SpeculationOptions("ngram")) == SpeculationConfig("ngram"), "whoever asks gets it"
    assert resolved(SpeculationOptions(depth=3)) == SpeculationConfig("ngram")


def test_what_was_said_before_is_kept_where_text_drafts() -> None:
    def resolved(asked: str, *drafts: DraftModelConfig) -> SpeculationConfig | None:
        return resolve_speculation(SpeculationOptions(asked, memory=500), drafts, 6, lambda *_: None)[0]

    assert resolved("ngram") == SpeculationConfig("ngram", remembers=500)
    assert resolved("auto", DRAFT) == SpeculationConfig("either", DRAFT, remembers=500)
    assert resolved("chain", DRAFT) == SpeculationConfig("chain", DRAFT, remembers=500)
    with pytest.raises(ConfigurationError, match="no text drafts"):
        resolved("chain", DRAFT, SMALLER)


def test_a_depth_that_is_asked_for_is_taken() -> None:
    assert resolve_speculation(SpeculationOptions("ngram", 3), (), 1, lambda *_: None)[1:] == (3, 0)
    assert resolve_speculation(SpeculationOptions("ngram", 3, width=2), (), 1, lambda *_: None)[1:] == (3, 2)
    assert resolve_speculation(SpeculationOptions("auto", 3, width=2), (DRAFT,), 1, lambda *_: None)[1:] == (3, 2)
    with pytest.raises(ConfigurationError, match="--speculative chain; trees are drafted by ngram, draft, "):
        resolve_speculation(SpeculationOptions("chain", 3, width=2), (DRAFT,), 1, lambda *_: None)


def test_what_is_judged_one_after_the_other_is_no_tree() -> None:
    options = SpeculationOptions("ngram", acceptance="rejection")
    assert resolve_speculation(options, (), 1, lambda *_: None)[1:] == (DRAFT_DEPTH, 0)


def test_a_draft_model_has_to_be_there() -> None:
    with pytest.raises(ConfigurationError, match="--draft-model"):
        resolve_speculation(SpeculationOptions("draft"), (), 1, lambda *_: None)


def test_heads_draft_no_more_than_there_are() -> None:
    heads, notes = DraftModelConfig("/heads", "none", None, most=3), []

    def resolved(depth: int | None) -> int:
        options = SpeculationOptions("medusa", depth=depth, draft_model="/heads")
        return resolve_speculation(options, (heads,), 8, lambda *note: notes.append(note))[1]

    assert resolved(None) == resolved(3) == 3 and resolved(2) == 2
    with pytest.raises(ConfigurationError, match="--speculative-depth 4 is more than the 3 heads draft"):
        resolved(4)
