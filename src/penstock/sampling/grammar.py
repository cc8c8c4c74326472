"""Grammars at work: compiled by llguidance, matched token by token, and as masks of the tokens that may come next."""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.core.errors import InvalidParameter, NothingFits
from penstock.core.grammar import Grammar
from penstock.sampling.choice import Masks
from penstock.sampling.keys import Keys, KeyTokens
from penstock.text.schema.enforceable import enforceable, json_rule
from penstock.text.table import TokenTable

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer

_Key = tuple[str, str, str]

MAX_CACHED = 128
# Only the used part of a stack takes memory.
_STACK_BYTES = 512 * 1024 * 1024
# The size is one setting for all threads that are started.
_stack_size = threading.Lock()
# Text that a grammar leaves no choice about is drawn token by token like any other, among all that spell it.
_NO_FORCING = '%llguidance {"no_forcing": true}'
# Where messages quote the source, and the place in it where that is one that we have written.
_QUOTED = re.compile(r"\n +\d+ \||\s<non-verbose/>|\n<state>")
_PLACE = re.compile(r"^at 1\(8\): (failed to compile JSON schema: )?")
_PLACE_OF_PART = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
# What it calls a schema's own parts, and a string that cannot be, before it quotes expressions.
_OWN_ADDRESS = "json-schema:///"
_NO_STRING = "Regex is empty:"
# What it calls a grammar whose first mask is empty.
_EMPTY = "NoExtensionBias"
# Waking threads takes a few tenths of a millisecond. In that time one thread computes masks of about
# `_TOKENS_WORTH_THREADS` tokens, where each mask costs the time of `_TOKENS_OF_A_MASK` tokens besides.
_TOKENS_WORTH_THREADS = 2**20
_TOKENS_OF_A_MASK = 2**14
# Each bounds the time or the memory of one grammar; a million of lexer fuel are about 20 ms, a lexer state about 2 kB.
_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}


class Matcher:
    """One output's way through a grammar."""

    __slots__ = ("keys", "raw", "_pieces")

    def __init__(self, raw: "LLMatcher", keys: Keys | None, pieces: Sequence[bytes]) -> None:
        """`keys`: of its objects in JSON, where they must be unique; `pieces`: the bytes of each token."""
        self.raw = raw
        self.keys = keys
        self._pieces = pieces

    def fork(self) -> "Matcher":
        """The same, to go on by itself."""
        return Matcher(self.raw.deep_copy(), None if self.keys is None else self.keys.copy(), self._pieces)

    def advance(self, token: int) -> bool:
        """Take the next token; whether the output is complete, so that nothing can follow. Raises NothingFits."""
        if not self.raw.consume_token(token):
            raise NothingFits(f"The grammar could not go on after this output: {_reason(self.raw.get_error())}")
        if self.keys is not None:
            self.keys.feed(self._pieces[token])
        return self.raw.is_stopped()


class Grammars:
    """Compiles grammars for one vocabulary and keeps the latest. Safe to use from several threads.

    llguidance and its view of the vocabulary are loaded when they are first needed, or before, by `load`: that takes a
    tenth of a second and more, during which no other Python code runs.
    """

    def __init__(self, table: TokenTable, vocab_size: int, eos_token_ids: tuple[int, ...], threads: int = 1) -> None:
        """Outputs end with one of `eos_token_ids`; `threads` threads compute masks where there are many at a time."""
        self._table = table
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._threads = threads
        self._loading = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._pieces: list[bytes] = []
        self._key_tokens: KeyTokens | None = None
        self._executor: LLExecutor | None = None
        self._compiled: OrderedDict[_Key, LLMatcher] = OrderedDict()
        self._cache = threading.Lock()

    def load(self) -> None:
        """Load what the first grammar would otherwise have to wait for."""
        if self._eos_token_ids:
            self._load()

    def has(self, grammar: Grammar) -> bool:
        """Whether the grammar is compiled and kept."""
        return _key(grammar) in self._compiled

    def compile(self, grammar: Grammar) -> None:
        """Compile and keep a grammar; raises InvalidParameter with the cause where it cannot be used."""
        self._prototype(grammar)

    def check(self, grammar: Grammar, output: Sequence[int]) -> None:
        """Raise InvalidParameter where an output does not begin as the grammar allows."""
        matcher = self.matcher(grammar)
        try:
            for token in output:
                matcher.advance(token)
        except NothingFits as error:
            raise InvalidParameter(grammar.param, f"does not allow the output so far: {error.message}") from None

    def matcher(self, grammar: Grammar) -> Matcher:
        """A matcher at the beginning of an output; compiles the grammar if it is not kept. Raises InvalidParameter."""
        raw = self._prototype(grammar).deep_copy()
        return Matcher(raw, Keys() if grammar.has_unique_keys else None, self._pieces)

    def fill(self, matchers: Sequence[Any], masks: Masks) -> None:
        """Write into `masks`, one for each matcher, which tokens may come next.

        A matcher whose grammar has become too complex to go on gets a mask of nothing.
        """
        size = masks.itemsize * masks.shape[1]
        address = masks.ctypes.data
        if len(matchers) * (self._vocab_size + _TOKENS_OF_A_MASK) < _TOKENS_WORTH_THREADS:
            for index, matcher in enumerate(matchers):
                matcher.raw.unsafe_compute_mask_ptr(address + index * size, size)
        else:
            assert self._executor is not None, "it is loaded with the first grammar"
            numbered = [(matcher.raw, index) for index, matcher in enumerate(matchers)]
            self._executor.unsafe_compute_mask_ptr(numbered, address, size, len(matchers))
        for index, matcher in enumerate(matchers):
            # What it writes in this case is the end of the output, which would be an answer cut short in silence.
            if matcher.raw.is_error():
                masks[index] = 0
            elif matcher.keys is not None:
                assert self._key_tokens is not None, "they are loaded with the first grammar"
                self._key_tokens.forbid(matcher.keys, masks[index])

    def _prototype(self, grammar: Grammar) -> "LLMatcher":
        key = _key(grammar)
        with self._cache:
            found = self._compiled.get(key)
            if found is not None:
                self._compiled.move_to_end(key)
                return found
        compiled = _with_deep_stack(lambda: self._compile(grammar))
        with self._cache:
            self._compiled[key] = compiled
            while len(self._compiled) > MAX_CACHED:
                self._compiled.popitem(last=False)
        return compiled

    def _compile(self, grammar: Grammar) -> "LLMatcher":
        from llguidance import LLMatcher, LLParserLimits

        if not self._eos_token_ids:
            raise InvalidParameter(grammar.param, "this model has no token that ends an output, which a grammar needs.")
        tokenizer = self._load()
        matcher = LLMatcher(tokenizer, _source_of(grammar), log_level=0, limits=LLParserLimits(**_LIMITS))
        if not matcher.is_error():
            # The first mask makes the first states of the lexer, which all copies have then.
            matcher.compute_bitmask()
        if matcher.is_error():
            raise InvalidParameter(grammar.param, _part_at_fault(grammar) + _reason(matcher.get_error(), grammar))
        return matcher

    def _load(self) -> "LLTokenizer":
        from llguidance import LLExecutor, LLTokenizer

        with self._loading:
            if self._tokenizer is None:
                self._executor = LLExecutor(self._threads)
                vocabulary: Any = _Vocabulary(self._table, self._vocab_size, self._eos_token_ids)
                special = set(vocabulary.special_token_ids)
                self._pieces = [b"" if token in special else piece for token, piece in enumerate(vocabulary.tokens)]
                self._key_tokens = KeyTokens(self._pieces)
                self._tokenizer = LLTokenizer(vocabulary, eos_token=list(self._eos_token_ids))
            return self._tokenizer


def _with_deep_stack(work: Callable[[], "LLMatcher"]) -> "LLMatcher":
    """The result of `work` on a thread with a stack that no grammar of the size that is accepted overflows.

    Rules and references are followed recursively: 20,000 of them, each naming the next, need more than 8 MiB.
    """
    results: list[LLMatcher] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    with _stack_size:
        before = threading.stack_size(_STACK_BYTES)
        thread = threading.Thread(target=run, name="grammar")
        thread.start()
        threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


class _Vocabulary:
    """The vocabulary as llguidance asks for it. What a token adds at the beginning of an output is not considered."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, table: TokenTable, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self.tokens = [table.piece(token) for token in range(vocab_size)]
        special = {token for token in range(min(vocab_size, len(table))) if table.special[token]}
        self.special_token_ids = sorted(special.union(eos_token_ids))
        self.eos_token_id = eos_token_ids[0]

    def __call__(self, text: str) -> list[int]:
        """Tokenizes forced text. There is none; the library calls it once, to see whether it takes bytes."""
        return []


def _key(grammar: Grammar) -> _Key:
    return grammar.kind, grammar.text, grammar.thought


def _source_of(grammar: Grammar) -> str:
    """The grammar as llguidance takes it; raises InvalidParameter."""
    if not grammar.thought:
        return _lark_of(grammar)
    if grammar.kind == "regex":
        # An expression may match whatever the thought begins with, or the white space behind it.
        answer = f"/{_expression(grammar)}/ & ~OPENING"
        return f"start: thought ANSWER\nANSWER: {answer}\n{grammar.thought}\n{_NO_FORCING}"
    # Each has names of its own.
    whole = f"start: thought @answer\n{grammar.thought}\n{_NO_FORCING}"
    named = {"name": "answer", "lark_grammar": _lark_of(grammar)}
    return json.dumps({"grammars": [{"lark_grammar": whole}, named]})


def _part_at_fault(grammar: Grammar) -> str:
    """Which part of a grammar of several schemas cannot be compiled, as the beginning of a sentence."""
    from llguidance import LLMatcher

    for line in grammar.text.splitlines() if grammar.parts else ():
        begins = next((about for beginning, about in grammar.parts if line.startswith(beginning)), None)
        _, found, schema = line.partition(" %json ")
        if begins and found and LLMatcher.validate_grammar(f"start: %json {schema}"):
            return f"the schema of {begins} cannot be used: "
    return ""


def _expression(grammar: Grammar) -> str:
    from llguidance import regex_to_lark

    # As most people mean it, a digit is one of ten.
    return regex_to_lark(grammar.text, "d")


def _lark_of(grammar: Grammar) -> str:
    """The grammar by itself in llguidance's dialect of Lark; raises InvalidParameter."""
    match grammar.kind:
        case "json_schema":
            schema, unenforced = enforceable(json.loads(grammar.text))
            if unenforced:
                raise unenforced[0].refusal(grammar.param)
            source = f"start: {json_rule(schema)}"
        case "regex":
            source = f"start: /{_expression(grammar)}/"
        case "lark":
            source = grammar.text
        case "gbnf":
            from llguidance.gbnf_to_lark import any_to_lark

            try:
                source = any_to_lark(grammar.text).removeprefix("%llguidance {}")
            except Exception as error:
                # The converter raises whatever comes up.
                raise InvalidParameter(grammar.param, _reason(str(error))) from None
    return f"{source}\n{_NO_FORCING}"


def _reason(message: str, grammar: Grammar | None = None) -> str:
    """llguidance's message as one sentence, without the source that it quotes; the place only in a client's source."""
    is_ours = grammar is not None and bool(grammar.parts)
    place = _PLACE_OF_PART if is_ours else _PLACE
    message = _QUOTED.split(place.sub("", message), maxsplit=1)[0].replace(_OWN_ADDRESS, "")
    if message == _EMPTY:
        return "no text fits it; does a part of it refer only to itself?"
    before, is_empty, _ = message.partition(_NO_STRING)
    if is_empty:
        message = f"{before}no string fits its pattern, format, lengths and values together"
    short = " ".join(message.split())[:400].strip().rstrip(".")
    return (short or "it cannot be used") + "."
