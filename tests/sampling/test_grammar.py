"""Grammars: outputs of random logits fit them, bad ones are refused, rows beside them notice nothing."""

import json
import random
import re
import threading

import jsonschema
import numpy as np
import pytest
import torch

from penstock.core.errors import InvalidParameter, NothingFits
from penstock.core.grammar import Grammar
from penstock.core.plan import BeginRow
from penstock.core.sampling import ReasoningBudget, SamplingParams
from penstock.sampling.grammar import Grammars, Matcher
from penstock.sampling.row import RowState
from penstock.sampling.sampler import Sampler
from penstock.text.pieces import Reasoning
from penstock.text.reasoning import Before, ReasoningParser, thought_rules
from penstock.text.reasoning_limit import ReasoningLimit
from penstock.text.stops import StopMatcher
from penstock.text.table import TokenStream, TokenTable
from support.endings import finish_of
from support.schemas import random_schema

pytestmark = pytest.mark.usefixtures("implementation")

# Tokens of bytes, of words that cross what a grammar tells apart, and at last the end.
WORDS = [
    '{"',
    '":',
    '": "',
    '",',
    '"}',
    "}}",
    "[[",
    "]",
    "true",
    "null",
    "12",
    "-0.5",
    " red",
    "green",
    "ab",
    "ünï",
    "\n  ",
]
PIECES = [bytes([byte]) for byte in range(256)] + [word.encode() for word in WORDS] + [b"<end>", b""]
EOS = len(PIECES) - 2
VOCABULARY = len(PIECES) + 3
TABLE = TokenTable(PIECES, PIECES, 0, [index == EOS for index in range(len(PIECES))])


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(TABLE, VOCABULARY, (EOS,), threads=2)


def row_of(grammars: Grammars, grammar: Grammar | None, sequence: int = 0, **params: object) -> RowState:
    settings = SamplingParams(**{"seed": sequence, "grammar": grammar, **params})
    matcher = None if grammar is None else grammars.matcher(grammar)
    budget = settings.reasoning_budget
    limit = None if budget is None else ReasoningLimit(budget, TokenStream(TABLE, True))
    return RowState(BeginRow(sequence, 0, [1], settings, (EOS,)), [1], grammar=matcher, reasoning=limit)


def run(grammars: Grammars, rows: list[RowState], steps: int, spread: float = 2.0) -> list[tuple[list[int], object]]:
    """Tokens of each row, and how it ended."""
    sampler = Sampler(VOCABULARY, fill_masks=grammars.fill)
    outputs: list[tuple[list[int], object]] = [([], None) for _ in rows]
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        # The same logits for a row whatever the rows beside it.
        logits = torch.randn(64, VOCABULARY, generator=generator) * spread
        # Strings and lists must end some time.
        logits[:, [ord('"'), ord("]"), ord("}")]] += 4
        running = [index for index, output in enumerate(outputs) if output[1] is None]
        if not running:
            break
        results = sampler.sample(
            logits, [rows[index] for index in running], [rows[index].sequence for index in running]
        )
        for index, result in zip(running, results, strict=True):
            ending = result.ending
            ended = ending and (ending.error or ending.reason)
            outputs[index] = (outputs[index][0] + result.tokens, ended)
    return outputs


def text_of(tokens: list[int]) -> str:
    return TABLE.decode(tokens)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_outputs_fit_their_schemas(grammars, first) -> None:
    schemas = [random_schema(seed) for seed in range(first, first + 20)]
    rows = [row_of(grammars, Grammar.json_schema(schema), index) for index, schema in enumerate(schemas)]
    complete = 0
    for (tokens, ended), schema in zip(run(grammars, rows, 300), schemas, strict=True):
        assert ended in ("stop", None), ended
        if ended == "stop":
            jsonschema.validate(json.loads(text_of(tokens)), schema)
            complete += 1
    assert complete >= 15


@pytest.mark.parametrize("before", ["reasoning", "open reasoning"])
def test_reasoning_within_its_budget_and_then_an_answer_that_fits(grammars, before: Before) -> None:
    """Of random logits: they would think for ever."""
    budget = ReasoningBudget(tokens=12, closing=tuple(b"\n</think>\n\n"), opened=before == "open reasoning")
    schemas = [random_schema(seed) for seed in range(20)]
    rows = []
    for index, schema in enumerate(schemas):
        grammar = Grammar.json_schema(schema)
        asked = Grammar(grammar.kind, grammar.text, "x", thought_rules(before, {}))
        rows.append(row_of(grammars, asked, index, reasoning_budget=budget, logprobs=1, frequency_penalty=0.5))
    complete = thoughts = 0
    for (tokens, ended), schema in zip(run(grammars, rows, 300), schemas, strict=True):
        assert ended in ("stop", None), ended
        parser = ReasoningParser(opened=budget.opened)
        pieces = [*parser.feed(text_of(tokens)), *parser.finish()]
        thought = sum(len(piece.text) for piece in pieces if isinstance(piece, Reasoning))
        thoughts += thought > 0
        if ended == "stop":
            answer = "".join(piece.text for piece in pieces if not isinstance(piece, Reasoning))
            jsonschema.validate(json.loads(answer), schema)
            complete += 1
    assert complete >= 12
    assert thoughts >= 15 or before == "reasoning"


@pytest.mark.parametrize("expression", ["[a-c]{3}", "(a+)+b", r"\d{3}-\d{4}", "(ab|green)*x", "ü?nï|red"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_outputs_match_their_expression(grammars, expression, temperature) -> None:
    rows = [row_of(grammars, Grammar.regex(expression), index, temperature=temperature) for index in range(8)]
    for tokens, ended in run(grammars, rows, 200):
        assert ended == "stop" and re.fullmatch(expression, text_of(tokens))


def test_grammars_in_both_notations(grammars) -> None:
    texts = {"red green.", "green red.", "red red.", "green green."}
    for source in ('start: w " " w "."\nw: "red" | "green"', 'root ::= w " " w "."\nw ::= "red" | "green"'):
        rows = [row_of(grammars, Grammar.ebnf(source), index) for index in range(8)]
        for tokens, ended in run(grammars, rows, 40):
            assert ended == "stop" and text_of(tokens) in texts


def test_choices(grammars) -> None:
    texts = ["red", "green", "a.b", "<end>"]
    rows = [row_of(grammars, Grammar.choice(texts), index) for index in range(16)]
    found = {text_of(tokens) for tokens, _ in run(grammars, rows, 40)}
    assert found <= set(texts)
    assert len(found) > 1


def test_a_complete_output_ends_at_once(grammars) -> None:
    ((tokens, ended),) = run(grammars, [row_of(grammars, Grammar.choice(["red"]), min_tokens=50, ignore_eos=True)], 60)
    assert ended == "stop"
    assert text_of(tokens) == "red"


def test_the_end_is_possible_where_more_could_follow(grammars) -> None:
    rows = [row_of(grammars, Grammar.regex("a+"), index) for index in range(8)]
    outputs = run(grammars, rows, 100)
    assert any(ended == "stop" and tokens[-1] == EOS for tokens, ended in outputs)
    assert {character for tokens, _ in outputs for character in text_of(tokens)} == {"a"}
    # Not before min_tokens, and not where a bias forbids it.
    long = run(grammars, [row_of(grammars, Grammar.regex("a+"), 3, min_tokens=20)], 25)
    assert EOS not in long[0][0][:19]


def test_rows_do_not_notice_each_other(grammars) -> None:
    """The same tokens and log probabilities alone and in a batch, constrained or not."""
    schema = Grammar.json_schema(random_schema(3))

    def rows() -> list[RowState]:
        return [
            row_of(grammars, None, 0, logprobs=2),
            row_of(grammars, schema, 1, logprobs=2),
            row_of(grammars, schema, 2, temperature=0.7, top_p=0.9, frequency_penalty=0.5),
            row_of(grammars, Grammar.regex("[a-z ]{30}"), 3, top_k=5, logit_bias={ord("q"): 5.0}),
            row_of(grammars, None, 4, repetition_penalty=1.3),
        ]

    together = run(grammars, rows(), 60)
    for index, row in enumerate(rows()):
        assert run(grammars, [row], 60) == [together[index]]


@pytest.mark.parametrize("seed", range(8))
def test_masks_are_the_same_alone_and_together(grammars, monkeypatch, seed) -> None:
    """Whichever rows are there, in whatever order, on the calling thread or on several: those of a row by itself."""
    chance = random.Random(seed)
    sources = [Grammar.json_schema(random_schema(seed)), Grammar.regex("[a-c]{3,9}"), Grammar.choice(["red", "green"])]
    words = (VOCABULARY + 31) // 32
    running: list[tuple[Grammar, list[int], Matcher]] = []
    for _ in range(40):
        while len(running) < chance.randrange(1, 9):
            source = chance.choice(sources)
            running.append((source, [], grammars.matcher(source)))
        chance.shuffle(running)
        # Rows that have no place in a step, or end before it.
        del running[chance.randrange(1, 9) :]
        step = running[: chance.randrange(1, len(running) + 1)]
        masks = np.zeros((len(step), words), np.uint32)
        monkeypatch.setattr("penstock.sampling.grammar._TOKENS_WORTH_THREADS", chance.choice([0, 2**20]))
        grammars.fill([matcher for _, _, matcher in step], masks)
        for (source, tokens, matcher), mask in zip(step, masks, strict=True):
            fresh = grammars.matcher(source)
            assert not any(fresh.advance(token) for token in tokens)
            assert mask.tobytes() == fresh.raw.compute_bitmask()
            allowed = np.unpackbits(mask.view(np.uint8), bitorder="little").nonzero()[0]
            token = int(chance.choice(allowed))
            tokens.append(token)
            if token == EOS or matcher.advance(token):
                running = [one for one in running if one[2] is not matcher]


@pytest.mark.parametrize("worth_threads", [0, 2**20])
def test_a_grammar_that_became_too_complex_fails_alone(grammars, monkeypatch, worth_threads) -> None:
    monkeypatch.setattr("penstock.sampling.grammar._TOKENS_WORTH_THREADS", worth_threads)
    matchers = [grammars.matcher(Grammar.regex("[a-c]{3}")) for _ in range(3)]
    with pytest.raises(NothingFits):
        matchers[1].advance(ord("x"))
    masks = np.full((3, (VOCABULARY + 31) // 32), 2**32 - 1, np.uint32)
    grammars.fill(matchers, masks)
    assert not masks[1].any()
    assert masks[0].any()
    assert (masks[0] == masks[2]).all()


def test_log_probabilities_are_of_what_is_allowed(grammars) -> None:
    row = row_of(grammars, Grammar.choice(["red", "green"]), logprobs=20, temperature=0.0)
    sampler = Sampler(VOCABULARY, fill_masks=grammars.fill)
    (result,) = sampler.sample(torch.zeros(1, VOCABULARY), [row], [0])
    (entry,) = result.logprobs
    allowed = sorted(index for index, piece in enumerate(PIECES) if piece in (b"r", b"g", b"green"))
    assert sorted(entry.top_tokens) == allowed
    assert np.isclose(np.exp(entry.top_logprobs).sum(), 1.0)


def test_nothing_left_is_said(grammars) -> None:
    row = row_of(grammars, Grammar.choice(["x"]), logit_bias={ord("x"): -100.0})
    assert run(grammars, [row], 1) == [([ord("x")], "stop")]
    sampler = Sampler(VOCABULARY, fill_masks=lambda matchers, masks: masks.fill(0))
    (result,) = sampler.sample(torch.zeros(1, VOCABULARY), [row_of(grammars, Grammar.choice(["x"]))], [0])
    assert (finish_of(result), result.ending.code) == ("error", NothingFits.code)
    assert result.ending.error.startswith("grammar: nothing that fits can follow")
    # What the mask leaves, the model may never write.
    logits = torch.zeros(1, VOCABULARY)
    logits[0, ord("x")] = -torch.inf
    for params in ({}, {"presence_penalty": 0.5}):
        (result,) = Sampler(VOCABULARY, fill_masks=grammars.fill).sample(
            logits, [row_of(grammars, Grammar.choice(["x"]), **params)], [0]
        )
        assert (finish_of(result), result.ending.code) == ("error", NothingFits.code)
        assert "logit_bias" in result.ending.error


def test_a_stop_string_in_the_last_token_of_a_grammar_is_the_reason(grammars) -> None:
    """As where the output could go on."""
    stopping = []
    for grammar, stop in (
        (Grammar.choice(["x}"]), ["}"]),
        (Grammar.regex("x}.*"), ["}"]),
        (Grammar.choice(["x}"]), ["y"]),
    ):
        settings = SamplingParams(seed=0, grammar=grammar, stop=stop)
        row = RowState(
            BeginRow(0, 0, [1], settings, (EOS,)), [1], stops=StopsIn(stop), grammar=grammars.matcher(grammar)
        )
        assert row.advance(ord("x")) == (None, None)
        stopping.append(row.advance(ord("}")))
    assert stopping == [("stop", "}"), ("stop", "}"), ("stop", None)]
    settings = SamplingParams(seed=0, grammar=Grammar.choice(["x}"]), stop_token_ids=[ord("}")])
    row = RowState(BeginRow(0, 0, [1], settings, (EOS,)), [1], grammar=grammars.matcher(Grammar.choice(["x}"])))
    assert [row.advance(ord("x")), row.advance(ord("}"))] == [(None, None), ("stop", ord("}"))]


class StopsIn:
    """Looks for stop strings of one token."""

    def __init__(self, stop: list[str]) -> None:
        self._matcher = StopMatcher(stop, 0)

    def find(self, token: int) -> str | None:
        return self._matcher.feed(PIECES[token])


def test_logits_that_are_not_numbers_are_seen_through_a_mask(grammars) -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 0] = torch.nan
    (result,) = Sampler(VOCABULARY, fill_masks=grammars.fill).sample(
        logits, [row_of(grammars, Grammar.choice(["x"]))], [0]
    )
    assert "NaN" in result.ending.error


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (Grammar.json_schema({"not": {"type": "string"}}), "not"),
        (Grammar.json_schema({"type": "string", "pattern": "(?=a)b"}), "look"),
        (Grammar.json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (Grammar.json_schema({"$ref": "https://example.com/x.json"}), "in the schema itself"),
        (Grammar.json_schema({"type": "object", "minProperties": 3, "maxProperties": 1}), "minProperties"),
        (Grammar.json_schema({"type": "integer", "minimum": 5, "maximum": 2}), "minimum"),
        (Grammar.json_schema({"$ref": "#"}), "refer only to itself?"),
        (Grammar.json_schema({"$ref": "#/$defs/x"}), "'/$defs/x' does not exist"),
        (Grammar.json_schema({"allOf": [{"type": "string", "pattern": "^a$"}, {"const": "b"}]}), "no string fits its"),
        (
            Grammar.json_schema({"$defs": {"n": {"items": {"$ref": "#/$defs/n", "minItems": 1}}}, "$ref": "#/$defs/n"}),
            ": #/$defs/n.",
        ),
        (Grammar.ebnf("start: start"), "refer only to itself?"),
        (Grammar.regex("a{1"), ""),
        (Grammar.regex("(?<=a)b"), "look"),
        (Grammar.ebnf("start: missing"), "missing"),
        (Grammar.ebnf("no grammar at all"), ""),
        (Grammar.ebnf("root ::= missing"), "missing"),
        (Grammar.ebnf('root ::= ("a'), "end of input"),
    ],
)
def test_a_grammar_that_cannot_be_used_is_refused_with_the_cause(grammars, grammar, words) -> None:
    with pytest.raises(InvalidParameter) as caught:
        grammars.compile(grammar)
    assert words.lower() in caught.value.message.lower()
    assert caught.value.param == "grammar"
    assert len(caught.value.message) < 500
    assert "\n" not in caught.value.message
    assert not re.search(r"coerce_one_of|lenient|\(And|json-schema:|llguidance", caught.value.message)


def chain(count: int) -> Grammar:
    return Grammar.ebnf("start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(count)) + f'\nr{count}: "x"')


@pytest.mark.parametrize(
    "grammar",
    [
        chain(5000),
        Grammar.json_schema({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        Grammar.json_schema({"properties": {"next": {"$ref": "#"}}}),
        Grammar.json_schema(
            {"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3000)}, "$ref": "#/$defs/d0"}
        ),
        Grammar.json_schema({"enum": [f"choice {i}" for i in range(8000)]}),
        Grammar.json_schema({"anyOf": [{"type": "string", "pattern": f"a{{{i},500}}"} for i in range(200)]}),
        Grammar.regex("(a{1,1000}){1,1000}"),
        Grammar.regex("((a+)+)+b"),
        Grammar.regex("|".join(f"{i}.*{i}" for i in range(3000))),
        Grammar.ebnf('start: a\na: a a | a | "x"'),
    ],
    ids=range(10),
)
def test_a_hostile_grammar_is_compiled_or_refused(grammars, grammar) -> None:
    """Neither the process nor its memory suffers."""
    try:
        grammars.compile(grammar)
    except InvalidParameter as error:
        assert error.message
    else:
        ((_, ended),) = run(grammars, [row_of(grammars, grammar)], 5)
        assert ended in ("stop", None), ended


def test_many_threads_compile_at_a_time() -> None:
    fresh = Grammars(TABLE, VOCABULARY, (EOS,))
    grammar = Grammar.json_schema(random_schema(1))
    threads = [threading.Thread(target=fresh.compile, args=(grammar,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fresh.has(grammar)


def test_what_is_kept_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr("penstock.sampling.grammar.MAX_CACHED", 3)
    fresh = Grammars(TABLE, VOCABULARY, (EOS,))
    made = [Grammar.regex("a" * count) for count in range(1, 6)]
    for grammar in made:
        fresh.compile(grammar)
    assert [fresh.has(grammar) for grammar in made] == [False, False, True, True, True]
    assert fresh.matcher(made[0]).advance(ord("a"))
    # Whichever was not used for longest makes room.
    fresh.compile(made[3])
    fresh.compile(made[1])
    assert [fresh.has(grammar) for grammar in made] == [True, True, False, True, False]


def test_compiling_leaves_other_threads_their_stacks(grammars) -> None:
    before = threading.stack_size()
    grammars.compile(Grammar.regex("[stacks]+"))
    assert threading.stack_size() == before


@pytest.mark.parametrize("beside", [0, 1])
def test_a_grammar_that_cannot_go_on_allows_nothing(grammars, beside) -> None:
    matchers = [grammars.matcher(Grammar.regex("ab*")) for _ in range(beside + 1)]
    with pytest.raises(NothingFits, match="could not go on"):
        matchers[0].advance(ord("b"))
    masks = np.full((beside + 1, (VOCABULARY + 31) // 32), 2**32 - 1, np.uint32)
    grammars.fill(matchers, masks)
    assert not masks[0].any() and all(mask.any() for mask in masks[1:])


def test_a_model_without_an_end_is_told_so() -> None:
    endless = Grammars(TABLE, VOCABULARY, ())
    endless.load()
    with pytest.raises(InvalidParameter, match="no token that ends"):
        endless.compile(Grammar.regex("a"))
