"""Speculation never changes a token: whoever drafts, however much is right, whatever else goes on.

`--drafted-prompts` says how many prompts are compared, 200 in `make soak`.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from penstock import LLM, Grammar, SamplingParams
from penstock.kernels.cpu.native import OBSTACLE
from penstock.llm import Completion
from penstock.speculation.draft_model import DraftModel
from penstock.speculation.ngram import NgramProposer
from penstock.speculation.proposer import Proposal, Proposer, Wanted
from penstock.speculation.tree import chain, chain_length, path_to
from penstock.stepping.rows import NEWEST
from support.checkpoints import make
from support.fitted import drafting, fitted
from support.heads import write_haiku_heads

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

OUTPUT = 32
BLOCK_BYTES = 16 * 8 * 2 * 2 * 64 * 2


class Knowing(NgramProposer):
    """Knows what comes, and says `wrong` now and then, or the token behind it."""

    def __init__(self, outputs: dict[tuple[int, ...], list[int]], right: float, wrong: int | None = None) -> None:
        super().__init__()
        self._outputs, self._right, self._wrong = outputs, right, wrong
        self._luck = random.Random(0)
        # What will follow, all tokens so far, and how many of them are the prompt.
        self._known: dict[int, tuple[list[int], list[int], int]] = {}

    def begin(self, sequence: int, tokens: list[int], salt: str = "") -> None:
        self._known[sequence] = (self._outputs.get(tuple(tokens), []), tokens, len(tokens))

    def coming(self, sequence: int) -> list[int]:
        output, tokens, prompt = self._known[sequence]
        return output[len(tokens) - prompt :]

    def gained(self, sequence: int, count: int) -> list[int]:
        return self._known[sequence][1][-count:]

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        drafts = []
        for row in wanted:
            ahead = self.coming(row.sequence)[: self._luck.randint(0, row.depth)]
            guesses = [token if self._luck.random() < self._right else self._other_than(token) for token in ahead]
            drafts.append(Proposal(guesses))
        return drafts

    def _other_than(self, token: int) -> int:
        return (token + 1) % 4096 if self._wrong is None else self._wrong

    def forget(self, sequence: int) -> None:
        self._known.pop(sequence, None)


class KnowingTrees(Knowing):
    """Says what comes somewhere in a tree, and other things beside it."""

    def __init__(self, outputs: dict[tuple[int, ...], list[int]], right: float) -> None:
        super().__init__(outputs, right)
        self.strayed = 0
        self._proposed: dict[int, Proposal] = {}

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        return [self._tree(row) for row in wanted]

    def observe(self, sequence: int, gained: int) -> None:
        tokens = self.gained(sequence, gained)
        proposal = self._proposed.pop(sequence, None)
        if proposal is not None and proposal.parents is not None:
            children = {key: place for place, key in enumerate(zip(proposal.parents, proposal.tokens, strict=True))}
            place = NEWEST
            for token in tokens:
                place = children.get((place, token), len(tokens))
                self.strayed += chain_length(proposal.parents) <= place < len(proposal.tokens)

    def _tree(self, row: Wanted) -> Proposal:
        luck, coming = self._luck, self.coming(row.sequence)
        likeliest = luck.randint(0, row.depth)
        tokens: list[int] = []
        parents = chain(likeliest)
        for node in range(likeliest + luck.randint(0, row.width)):
            if node >= likeliest:
                parents.append(luck.choice([at for at in range(NEWEST, node) if self._depth(parents, at) < row.depth]))
            ahead = self._depth(parents, node) - 1
            siblings = {tokens[other] for other in range(node) if parents[other] == parents[node]}
            token = coming[ahead] if ahead < len(coming) and luck.random() < self._right else luck.randrange(300)
            while token in siblings:
                token = (token + 1) % 4096
            tokens.append(token)
        self._proposed[row.sequence] = Proposal(tokens, None, parents)
        return self._proposed[row.sequence]

    @staticmethod
    def _depth(parents: Sequence[int], place: int) -> int:
        return len(path_to(parents, place))


class Seeing(KnowingTrees):
    """Learns from hidden states too, and keeps those of every position."""

    states: Literal["selected", "all"] = "selected"

    def __init__(self, outputs: dict[tuple[int, ...], list[int]], right: float) -> None:
        super().__init__(outputs, right)
        self.seen: dict[tuple[int, int], Tensor] = {}

    def see(self, sequence: int, start: int, states: Tensor) -> None:
        for position, state in enumerate(states, start):
            self.seen[sequence, position] = state.clone()


class Silent(Seeing):
    """Drafts nothing."""

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        return [Proposal([]) for _ in wanted]


def prompts(count: int) -> list[dict[str, list[int]]]:
    """Some repeat themselves, and some begin alike."""
    luck, common = random.Random(count), [random.Random(1).randrange(300, 4096) for _ in range(40)]
    made = []
    for number in range(count):
        own = [luck.randrange(300, 4096) for _ in range(luck.randint(1, 30))]
        made.append({"prompt_token_ids": [*(common if number % 3 else ()), *own * luck.randint(1, 3)]})
    return made


def params(count: int) -> list[SamplingParams]:
    """Greedy, sampled, and with all that depends on the tokens before."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0, "logprobs": 2},
        {"temperature": 0.8, "logprobs": 0},
        {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "logprobs": 1},
        {"temperature": 0.0, "presence_penalty": 0.5, "min_tokens": 10, "ignore_eos": False, "stop": [" the", "e"]},
        {"temperature": 0.8, "n": 2, "top_k": 50, "min_tokens": 9},
    ]
    return [
        SamplingParams(**{"seed": number, "max_tokens": OUTPUT - number % 7, "ignore_eos": True, **kinds[number % 5]})
        for number in range(count)
    ]


def engine(proposer: Proposer | None = None, **options: Any) -> LLM:
    """An engine; where a `proposer` is given, that one drafts."""
    pool = {"kv_cache_memory": 600 * BLOCK_BYTES}
    settings = {"threads": 1, "max_model_len": 512, **pool, **options}
    return LLM("haiku", **settings) if proposer is None else fitted("haiku", drafting(proposer), **settings)


def told(outputs: Sequence[Completion]) -> list[object]:
    return [
        [(each.token_ids, each.text, each.logprobs, each.finish_reason, each.stop_reason) for each in output.samples]
        for output in outputs
    ]


@pytest.fixture(scope="module")
def count(pytestconfig: pytest.Config) -> int:
    return int(pytestconfig.getoption("drafted_prompts"))


@pytest.fixture(scope="module")
def expected(count: int) -> list[Completion]:
    return engine(speculative="off", enable_prefix_caching=False).generate(prompts(count), params(count))


@pytest.fixture(scope="module")
def knowing(count: int, expected: list[Completion]) -> dict[tuple[int, ...], list[int]]:
    asked = prompts(count)
    return {
        tuple(prompt["prompt_token_ids"]): list(done.token_ids) for prompt, done in zip(asked, expected, strict=True)
    }


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_haiku_heads(tmp_path_factory.mktemp("heads"))


PROPOSERS: dict[str, dict[str, Any]] = {
    "ngram": {"speculative": "ngram"},
    "ngram, remembering": {"speculative": "ngram", "speculative_memory": 2000},
    "draft": {"speculative": "draft"},
    "auto": {"speculative": "auto"},
    "rounded": {"speculative": "draft", "draft_model": "haiku", "draft_quantization": "int4"},
    "chain": {"speculative": "chain"},
    "chain of models": {
        "speculative": "chain",
        "draft_model": "haiku",
        "draft_quantization": "int4",
        "chain_model": "haiku-draft",
    },
    "self": {"speculative": "self", "speculative_layers": 6},
    "medusa": {"speculative": "medusa"},
    "eagle": {"speculative": "eagle"},
    "half right": {"speculative": "ngram"},
    "always right": {"speculative": "ngram"},
    "always wrong": {"speculative": "ngram"},
    "ngram, branches": {"speculative": "ngram", "speculative_width": 1},
    "draft, branches": {"speculative": "draft", "speculative_width": 3},
    "auto, branches": {"speculative": "auto", "speculative_width": 2},
    "self, branches": {"speculative": "self", "speculative_layers": 6, "speculative_width": 2},
    "medusa, branches": {"speculative": "medusa", "speculative_width": 5},
    "eagle, branches": {"speculative": "eagle", "speculative_width": 3},
    "trees": {"speculative": "medusa", "speculative_width": 6},
}


# Each proposer at one of the batch sizes, and at all of them in `make soak`.
BATCHES = (1, 4, 16)
SOME = {(proposer, BATCHES[place % len(BATCHES)]) for place, proposer in enumerate(PROPOSERS)}


@pytest.mark.parametrize(
    "proposer, batch",
    [
        pytest.param(proposer, batch, marks=() if (proposer, batch) in SOME else pytest.mark.slow)
        for proposer in PROPOSERS
        for batch in BATCHES
    ],
)
def test_tokens_and_logprobs_are_those_without(
    count: int,
    expected: list[Completion],
    knowing: dict[tuple[int, ...], list[int]],
    heads: dict[str, str],
    proposer: str,
    batch: int,
) -> None:
    luck = random.Random(f"{proposer} {batch}")
    kind = PROPOSERS[proposer]["speculative"]
    depth = luck.choice([1, 3, 3 if kind == "medusa" else 5])
    options: dict[str, Any] = {
        **PROPOSERS[proposer],
        **({"draft_model": heads[kind]} if kind in heads else {}),
        "speculative_depth": depth,
        "max_num_seqs": batch,
        "enable_prefix_caching": luck.random() < 0.7,
        "long_prefill_token_threshold": luck.choice([None, 7]),
        # Some of them are preempted.
        "kv_cache_memory": luck.choice([68, 120, 600]) * BLOCK_BYTES,
    }
    proposers: dict[str, Proposer] = {}
    right = {"half right": 0.5, "always right": 1.0, "always wrong": 0.0}.get(proposer)
    if right is not None:
        # It knows one sample of each prompt; what it says wrongly is what no sample says.
        said = {token for done in expected for sample in done.samples for token in sample.token_ids}
        nobody_says = next(token for token in range(4096) if token not in said)
        proposers[proposer] = Knowing(knowing, right, nobody_says)
    trees = proposers["trees"] = KnowingTrees(knowing, 0.6)
    llm = engine(proposers.get(proposer), **options)
    assert told(llm.generate(prompts(count), params(count))) == told(expected)
    # Heads that nobody trained are right by chance at most.
    assert llm.totals.drafted > 0
    assert kind in heads or (llm.totals.accepted > 0) == (proposer != "always wrong")
    assert (trees.strayed > 0) == (proposer == "trees")


def test_what_was_said_before_is_drafted(count: int, expected: list[Completion]) -> None:
    """Who asks the same again is answered in fewer steps, by the same tokens."""
    right = []
    for memory in (0, 100_000):
        options = {"speculative": "ngram", "speculative_depth": 4, "speculative_memory": memory}
        llm = engine(**options, max_num_seqs=4)
        for _ in range(2):
            before = llm.totals
            assert told(llm.generate(prompts(count), params(count))) == told(expected)
            right.append(llm.totals.since(before).accepted)
    *others, again = right
    tokens = sum(len(sample.token_ids) for output in expected for sample in output.samples)
    # Of five tokens, four may be drafts.
    assert max(others) < 0.5 * tokens < again


def test_trees_are_for_models_with_windows_too(tmp_path: Path) -> None:
    """Each kind of layers has block tables of its own, and so have branches."""
    path = str(make("gemma3", tmp_path, confident=True))
    luck = random.Random(4)
    asked = [{"prompt_token_ids": [luck.randrange(100) for _ in range(luck.randint(1, 60))]} for _ in range(12)]
    plain = [
        SamplingParams(temperature=0.6 * (place % 2), seed=place, max_tokens=OUTPUT, ignore_eos=True, logprobs=1)
        for place in range(len(asked))
    ]
    options: dict[str, Any] = {"threads": 1, "max_model_len": 256, "max_num_seqs": 4}
    expected = LLM(path, enable_prefix_caching=False, **options).generate(asked, plain)
    outputs = {
        tuple(prompt["prompt_token_ids"]): list(done.token_ids) for prompt, done in zip(asked, expected, strict=True)
    }
    trees = KnowingTrees(outputs, 0.6)
    llm = fitted(path, drafting(trees), speculative="ngram", speculative_depth=6, speculative_width=6, **options)
    assert len(llm._prepared.config.cache.spec.groups) > 1
    assert told(llm.generate(asked, plain)) == told(expected)
    assert trees.strayed > 20


def test_who_learns_from_states_sees_those_of_what_was_right(
    count: int, knowing: dict[tuple[int, ...], list[int]], heads: dict[str, str]
) -> None:
    """Wherever in a tree it stood, and whatever was computed beside it, bit by bit."""
    asked = [(prompt, param) for prompt, param in zip(prompts(count), params(count), strict=True) if param.n == 1]
    seen = []
    for learner in (Silent(knowing, 0.0), Seeing(knowing, 0.6)):
        llm = engine(
            learner,
            speculative="medusa",
            draft_model=heads["medusa"],
            speculative_depth=3,
            speculative_width=5,
            max_num_seqs=4,
            enable_prefix_caching=False,
        )
        llm.generate([prompt for prompt, _ in asked], [param for _, param in asked])
        seen.append(learner.seen)
    assert learner.strayed > 0
    # A draft that ends a text was computed, and nobody else's last token is.
    assert seen[0].keys() <= seen[1].keys() and len(seen[0]) > 100
    assert all(torch.equal(state, seen[1][place]) for place, state in seen[0].items())


def test_a_depth_by_what_pays_changes_nothing(count: int, expected: list[Completion]) -> None:
    llm = engine(max_num_seqs=4, speculative="auto")
    assert told(llm.generate(prompts(count), params(count))) == told(expected)
    assert llm.totals.drafted > 0


# Each with one or two of these, and with all of them in `make soak`.
FOR_THEMSELVES = {
    "alone": {"speculative": "draft"},
    "helped by the text": {"speculative": "chain"},
    "helped by a model": {"speculative": "chain", "chain_model": "haiku-draft"},
}
POOLS: list[tuple[bool, dict[str, int]]] = [
    (caching, options) for options in ({}, {"kv_cache_memory": 68 * BLOCK_BYTES}) for caching in (False, True)
]


def asked_of_themselves() -> tuple[list[dict[str, list[int]]], list[SamplingParams]]:
    """So many and so long that the smaller pool does not hold them."""
    kinds = [(0.0, 1), (0.8, 1), (1.2, 2), (0.7, 3)] * 5
    return prompts(len(kinds)), [
        SamplingParams(temperature=temperature, top_p=0.95, seed=number, max_tokens=48, ignore_eos=True, n=n)
        for number, (temperature, n) in enumerate(kinds)
    ]


@pytest.fixture(scope="module")
def expected_of_themselves() -> list[object]:
    return told(engine(speculative="off", enable_prefix_caching=False).generate(*asked_of_themselves()))


@pytest.mark.parametrize(
    "proposer, caching, options",
    [
        pytest.param(proposer, caching, options, id=name, marks=() if (row + column) % 3 == 0 else pytest.mark.slow)
        for row, (name, proposer) in enumerate(FOR_THEMSELVES.items())
        for column, (caching, options) in enumerate(POOLS)
    ],
)
def test_a_model_that_drafts_for_itself_is_always_right(
    expected_of_themselves: list[object], proposer: dict[str, Any], options: dict[str, Any], caching: bool
) -> None:
    """Its keys and values are where they should be, after chunks, forks, preemptions, and in blocks of others.

    Its noise is the target's.
    """
    llm = engine(
        **proposer,
        draft_model="haiku",
        draft_quantization="none",
        speculative_depth=4,
        enable_prefix_caching=caching,
        long_prefill_token_threshold=7,
        max_num_seqs=6,
        **options,
    )
    assert told(llm.generate(*asked_of_themselves())) == expected_of_themselves
    assert llm.totals.accepted == llm.totals.drafted > 0
    assert bool(llm.load.preemptions) == bool(options)


@pytest.mark.parametrize(
    "chain, acceptance",
    [
        pytest.param({}, "coupled", id="text-coupled", marks=pytest.mark.slow),
        pytest.param({}, "rejection", id="text-rejection"),
        pytest.param({"chain_model": "haiku-draft"}, "coupled", id="model-coupled"),
        pytest.param({"chain_model": "haiku-draft"}, "rejection", id="model-rejection", marks=pytest.mark.slow),
    ],
)
def test_in_a_chain_the_draft_model_says_what_it_would_say_alone(
    count: int, chain: dict[str, str], acceptance: str
) -> None:
    options = {"draft_model": "haiku", "draft_quantization": "int4", "speculative_depth": 5, "max_num_seqs": 4}
    alone, chained = (
        engine(speculative=proposer, speculative_acceptance=acceptance, **options, **more)
        for proposer, more in (("draft", {}), ("chain", chain))
    )
    assert told(chained.generate(prompts(count), params(count))) == told(alone.generate(prompts(count), params(count)))
    assert chained.totals.drafted == alone.totals.drafted > chained.totals.accepted == alone.totals.accepted > 0


def test_in_a_chain_several_tokens_come_of_one_step_of_the_draft_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who drafts for it is the same model here, and so always right, whatever is ahead of what is verified."""
    judged: list[tuple[int, int]] = []
    judge = DraftModel.judge

    def watched(self: DraftModel, rows: Sequence[Wanted], guesses: Sequence[list[int]], *more: Any) -> list[Proposal]:
        found = judge(self, rows, guesses, *more)
        judged.extend((len(guess), len(said.tokens)) for guess, said in zip(guesses, found, strict=True))
        return found

    monkeypatch.setattr(DraftModel, "judge", watched)
    llm = engine(
        speculative="chain",
        draft_model="haiku",
        chain_model="haiku",
        speculative_depth=7,
        max_num_seqs=4,
        kv_cache_memory=300 * BLOCK_BYTES,
    )
    llm.generate(prompts(12), params(12))
    assert judged and max(guesses for guesses, _ in judged) > 1
    assert all(said == guesses + 1 for guesses, said in judged)


SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 20},
        "lines": {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 3, "maxItems": 3},
        "season": {"enum": ["spring", "summer", "autumn", "winter"]},
    },
    "required": ["title", "lines", "season"],
    "additionalProperties": False,
}


def held_to_the_schema(llm: LLM) -> list[Completion]:
    """Greedy and sampled answers."""
    asked = [
        [{"role": "user", "content": f"Write a haiku about {topic} as JSON."}] for topic in ("rain", "a crow", "snow")
    ]
    return [
        answer
        for temperature in (0.0, 0.8)
        for answer in llm.chat(
            asked,
            SamplingParams(
                temperature=temperature, seed=5, max_tokens=150, grammar=Grammar.json_schema(SCHEMA), logprobs=1
            ),
        )
    ]


@pytest.fixture(scope="module")
def expected_of_a_grammar() -> list[Completion]:
    return held_to_the_schema(engine(max_model_len=1024, speculative="off"))


@pytest.mark.parametrize("proposer", ["ngram", "draft", "chain", "self"])
def test_what_is_held_to_a_grammar_is_the_same(expected_of_a_grammar: list[Completion], proposer: str) -> None:
    llm = engine(max_model_len=1024, speculative_depth=3, **PROPOSERS[proposer])
    found = held_to_the_schema(llm)
    assert told(found) == told(expected_of_a_grammar)
    for answer in found:
        assert answer.finish_reason == "stop" and set(json.loads(answer.text)) == {"title", "lines", "season"}
    assert llm.totals.accepted > 0


def test_rejection_sampling_keeps_what_is_held_to_and_what_is_greedy(count: int, expected: list[Completion]) -> None:
    """Sampled texts are others; those at temperature 0 are the same, and a schema holds all of them."""
    llm = engine(speculative="draft", speculative_acceptance="rejection", speculative_depth=3, max_num_seqs=4)
    found = told(llm.generate(prompts(count), params(count)))
    greedy = [place for place, param in enumerate(params(count)) if not param.temperature]
    assert [found[place] for place in greedy] == [told(expected)[place] for place in greedy]
    assert found != told(expected) and 0 < llm.totals.accepted < llm.totals.drafted
    held = SamplingParams(temperature=0.8, seed=5, max_tokens=150, grammar=Grammar.json_schema(SCHEMA))
    asked = [[{"role": "user", "content": f"Write a haiku about {topic} as JSON."}] for topic in ("rain", "snow")]
    for answer in llm.chat(asked, held):
        assert answer.finish_reason == "stop" and set(json.loads(answer.text)) == {"title", "lines", "season"}
