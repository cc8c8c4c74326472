"""Every proposer with every combination of features gives what comes out without drafts; docs/features.md says so.

The combinations of a seeded choice of engines run in `make test`, those of all engines with `--slow`. With
`--write-features` the page is written anew.
"""

import itertools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import LLM, Grammar, SamplingParams
from penstock.core.errors import ConfigurationError
from penstock.kernels.cpu.native import OBSTACLE
from penstock.llm import Completion
from support.heads import write_haiku_heads

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

PAGE = Path(__file__).parents[2] / "docs" / "features.md"
BLOCK_BYTES = 16 * 8 * 2 * 2 * 64 * 2
WORDS = Grammar.regex("([a-z]{2,7} ){4}[a-z]{2,7}")

# What a request may ask for.
ASKED: dict[str, dict[str, Any]] = {
    "a grammar": {"grammar": WORDS},
    "log probabilities": {"logprobs": 2},
    "penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.3},
    "`n`": {"n": 2},
}
# What an engine may do.
SERVED: dict[str, dict[str, Any]] = {
    "prefix caching": {"enable_prefix_caching": True},
    "preemption": {"kv_cache_memory": 34 * BLOCK_BYTES},
    "int8 weights": {"quantization": "int8"},
}
PROPOSERS: dict[str, dict[str, Any]] = {
    "`ngram`": {"speculative": "ngram"},
    "`draft`": {"speculative": "draft"},
    "`auto`": {"speculative": "auto"},
    "`chain`": {"speculative": "chain"},
    "`self`": {"speculative": "self", "speculative_layers": 6},
    "`medusa`": {"speculative": "medusa"},
    "`eagle`": {"speculative": "eagle"},
    "`ngram`, trees": {"speculative": "ngram", "speculative_width": 3},
    "`draft`, trees": {"speculative": "draft", "speculative_width": 2},
    "`self`, trees": {"speculative": "self", "speculative_layers": 6, "speculative_width": 3},
    "`medusa`, trees": {"speculative": "medusa", "speculative_width": 4},
    "`eagle`, trees": {"speculative": "eagle", "speculative_width": 3},
}
# What does not go together, and is refused when an engine starts.
REFUSED: tuple[Mapping[str, Any], ...] = (
    {"speculative": "medusa"},
    {"speculative": "ngram", "draft_model": "haiku-draft"},
    {"speculative": "draft", "speculative_layers": 3},
    {"speculative": "draft", "chain_model": "haiku-draft"},
    {"speculative": "self", "speculative_layers": 8},
    {"speculative": "off", "speculative_depth": 3},
    {"speculative": "off", "speculative_acceptance": "rejection"},
    {"speculative": "self", "speculative_memory": 1000},
    {"speculative": "chain", "speculative_depth": 3, "speculative_width": 2},
    {"speculative": "ngram", "speculative_width": 2},
    {"speculative": "ngram", "speculative_depth": 3, "speculative_width": 4},
    {
        "speculative": "ngram",
        "speculative_depth": 3,
        "speculative_width": 2,
        "speculative_acceptance": "rejection",
    },
)


def subsets(features: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [chosen for count in range(len(features) + 1) for chosen in itertools.combinations(features, count)]


SERVERS = subsets(SERVED)
# Each proposer with all, or with something less.
SOME = {
    (proposer, SERVERS[-1] if place % 2 else random.Random(place).choice(SERVERS[:-1]))
    for place, proposer in enumerate(PROPOSERS)
}
ENGINES = [
    pytest.param(
        proposer,
        chosen,
        id=f"{proposer.strip('`')} {', '.join(chosen) or 'alone'}",
        marks=() if (proposer, chosen) in SOME else pytest.mark.slow,
    )
    for proposer in PROPOSERS
    for chosen in SERVERS
]


def engine(chosen: Sequence[str], **options: Any) -> LLM:
    base: dict[str, Any] = {
        "threads": 1,
        "max_model_len": 256,
        "max_num_seqs": 16,
        "enable_prefix_caching": False,
        "kv_cache_memory": 600 * BLOCK_BYTES,
    }
    for feature in chosen:
        base |= SERVED[feature]
    return LLM("haiku", **base, **options)


def params() -> list[SamplingParams]:
    """Every combination of what may be asked for, greedy and sampled."""
    return [
        SamplingParams(
            **{"temperature": 0.8 * (place % 2), "seed": place, "max_tokens": 28, "ignore_eos": True}
            | {name: value for feature in chosen for name, value in ASKED[feature].items()}
        )
        for place, chosen in enumerate(chosen for chosen in subsets(ASKED) for _ in range(2))
    ]


def prompts() -> list[dict[str, list[int]]]:
    luck = random.Random(5)
    common = [luck.randrange(300, 4096) for _ in range(40)]
    return [
        {"prompt_token_ids": [*common, *([luck.randrange(300, 4096) for _ in range(luck.randint(2, 9))] * 3)]}
        for _ in params()
    ]


def told(outputs: Sequence[Completion]) -> list[object]:
    return [
        [(each.token_ids, each.text, each.logprobs, each.finish_reason) for each in output.samples]
        for output in outputs
    ]


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_haiku_heads(tmp_path_factory.mktemp("heads"))


@pytest.fixture(scope="module")
def expected() -> dict[bool, list[object]]:
    """Without drafts; only what weights are rounded to makes a difference."""
    return {
        rounded: told(engine(("int8 weights",) if rounded else ()).generate(prompts(), params()))
        for rounded in (False, True)
    }


@pytest.mark.parametrize("proposer, chosen", ENGINES)
def test_every_combination_is_the_same_without_drafts(
    expected: dict[bool, list[object]], heads: dict[str, str], proposer: str, chosen: tuple[str, ...]
) -> None:
    options = dict(PROPOSERS[proposer])
    if options["speculative"] in heads:
        options["draft_model"] = heads[options["speculative"]]
    llm = engine(chosen, speculative_depth=3, **options)
    assert told(llm.generate(prompts(), params())) == expected["int8 weights" in chosen]
    assert llm.totals.drafted > 0
    assert bool(llm.load.preemptions) == ("preemption" in chosen)


def test_what_does_not_go_together_is_refused_with_a_reason(pytestconfig: pytest.Config) -> None:
    lines = []
    for options in REFUSED:
        with pytest.raises(ConfigurationError) as refused:
            engine((), **options)
        asked = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items())
        lines.append(f"| `{asked}` | {refused.value} |")
    text = page(lines)
    if pytestconfig.getoption("write_features"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text, "write docs/features.md anew: pytest --write-features, on this file"


def page(refused: Sequence[str]) -> str:
    features = [*ASKED, *SERVED]
    each = 2 ** (len(features) - 1)
    rows = [f"| {proposer} | {' | '.join(f'same, in {each}' for _ in features)} |" for proposer in PROPOSERS]
    return "\n".join(
        [
            "# What works together",
            "",
            "`tests/end_to_end/test_feature_matrix.py` writes this page. It compares tokens, texts, log probabilities",
            "and ends with those of an engine without drafts. Each combination runs greedy and sampled, with 3 drafted",
            f"tokens. `make test` runs some of them, `make soak` all {2 ** len(features) * len(PROPOSERS)};",
            "one that differs fails.",
            "",
            f"| `--speculative` | {' | '.join(features)} |",
            f"|---|{'---|' * len(features)}",
            *rows,
            "",
            f"*Same, in {each}*: in all {each} combinations with that feature.",
            "",
            "## What is refused",
            "",
            "These combinations end the start with one sentence:",
            "",
            "| asked for | answer |",
            "|---|---|",
            *refused,
            "",
        ]
    )
