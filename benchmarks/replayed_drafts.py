"""What drafts gain on a large model, where who drafts costs nothing: replayed ones, and those of n-grams on copies.

    python benchmarks/replayed_drafts.py OUT/bf16 --quantization int4 [--acceptance 0.7] [--depth 4] [--rounds 5]

A model with random weights says nothing that could be guessed. So its own output is recorded first, and drafts replay
it, each token being right with the probability asked for. Then outputs are forced to copy a passage of their prompt,
by a step of the logits that leaves one token, with and without n-gram drafts. One request at a time; rounds with and
without drafts take turns, and outputs are compared. Ends with 1 where a speed-up is below what is wanted.
"""

import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from reporting import machine, parser, table

from penstock import LLM, SamplingParams
from penstock.assembly.build import build_engine
from penstock.bench.speculation import theory
from penstock.core.plan import BeginRow
from penstock.runtime.parts import ExecutorParts
from penstock.sampling.row import RowState
from penstock.speculation.ngram import NgramProposer
from penstock.speculation.proposer import Proposal, Wanted

# Token ids of prompts are below it.
VOCABULARY = 4000


class Replaying(NgramProposer):
    """Says what was said before, and now and then something else."""

    def __init__(self, outputs: dict[tuple[int, ...], list[int]], acceptance: float) -> None:
        super().__init__()
        self._outputs = outputs
        self._acceptance = acceptance
        self._luck = random.Random(0)
        # What will follow, all tokens so far, and how many of them are the prompt.
        self._known: dict[int, tuple[list[int], list[int], int]] = {}

    def begin(self, sequence: int, tokens: list[int], salt: str = "") -> None:
        """Find what followed this prompt."""
        self._known[sequence] = self._outputs[tuple(tokens)], tokens, len(tokens)

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """The next ones, each right with the probability asked for."""
        return [Proposal([self._or_wrong(token) for token in self._ahead(row)]) for row in wanted]

    def forget(self, sequence: int) -> None:
        """Forget the sequence."""
        self._known.pop(sequence, None)

    def _ahead(self, row: Wanted) -> list[int]:
        output, tokens, prompt = self._known[row.sequence]
        return output[len(tokens) - prompt :][: row.depth]

    def _or_wrong(self, token: int) -> int:
        return token if self._luck.random() < self._acceptance else (token + 1) % VOCABULARY


class Script:
    """Leaves one token at each position: those of a text, from its beginning to its end and again."""

    def __init__(self, text: Sequence[int]) -> None:
        self._text = text
        self._place = 0

    @property
    def forced(self) -> int:
        """The token that comes next."""
        return self._text[self._place % len(self._text)]

    def advance(self, token: int) -> None:
        """Take it."""
        self._place += 1


def copying(parts: ExecutorParts) -> ExecutorParts:
    """Make each output of an engine a copy of its prompt."""

    def begin(row: BeginRow, prompt: Sequence[int]) -> RowState:
        return RowState(row, prompt, reasoning=Script(list(prompt)))

    return replace(parts, choosing=replace(parts.choosing, begin=begin))


def fitted(model: str, fit: Callable[[ExecutorParts], ExecutorParts], **options: object) -> LLM:
    """An engine with what `fit` makes of its executor's parts."""
    return LLM(model, build=partial(build_engine, fit=fit), **options)


def compare(
    plain: LLM, drafting: LLM, prompts: list[list[int]], params: SamplingParams, rounds: int
) -> tuple[float, float, float]:
    """The median speed-up, tokens a step with drafts, and tokens a second without."""
    ratios, speeds = [], []
    before = drafting.totals
    for round_ in range(rounds + 1):
        asked = [{"prompt_token_ids": prompts[round_ % len(prompts)]}]
        seconds, told = [], []
        for llm in (plain, drafting):
            start = time.perf_counter()
            told.append(llm.generate(asked, params)[0].token_ids)
            seconds.append(time.perf_counter() - start)
        if told[0] != told[1]:
            sys.exit("Drafts have changed an output.")
        if round_:
            ratios.append(seconds[0] / seconds[1])
            speeds.append(len(told[0]) / seconds[0])
    did = drafting.totals.since(before)
    gained = 1 + did.accepted / max(1, did.decodes)
    return statistics.median(ratios), gained, statistics.median(speeds)


def main() -> int:
    """Measure both, and say what came of it."""
    arguments = parser(__doc__)
    arguments.add_argument("model")
    arguments.add_argument("--quantization", default="int4")
    arguments.add_argument("--acceptance", type=float, default=0.7, help="of each replayed token (default 0.7)")
    arguments.add_argument("--depth", type=int, default=4, help="tokens that are replayed at a time (default 4)")
    arguments.add_argument("--copied", type=int, default=8, help="tokens that n-grams draft at a time (default 8)")
    arguments.add_argument("--prompt-len", type=int, default=64, help="tokens of a prompt, and of a copy (default 64)")
    arguments.add_argument("--output-len", type=int, default=128, help="tokens of an output (default 128)")
    arguments.add_argument("--rounds", type=int, default=5, help="that count (default 5)")
    arguments.add_argument("--wanted", type=float, nargs=2, default=(1.9, 2.5), help="speed-ups (default 1.9 2.5)")
    asked = arguments.parse_args()
    luck = random.Random(0)
    prompts = [[luck.randrange(100, VOCABULARY) for _ in range(asked.prompt_len)] for _ in range(asked.rounds + 1)]
    options = {"quantization": asked.quantization, "max_num_seqs": 1, "max_model_len": 1024}
    params = SamplingParams(temperature=0.0, max_tokens=asked.output_len, ignore_eos=True)
    plain = LLM(asked.model, speculative="off", **options)
    outputs = {tuple(prompt): plain.generate([{"prompt_token_ids": prompt}], params)[0].token_ids for prompt in prompts}

    def replays(parts: ExecutorParts) -> ExecutorParts:
        return replace(parts, drafting=replace(parts.drafting, proposer=Replaying(outputs, asked.acceptance)))

    replaying = fitted(asked.model, replays, speculative="ngram", speculative_depth=asked.depth, **options)
    replayed = compare(plain, replaying, prompts, params, asked.rounds)
    copies = fitted(asked.model, copying, speculative="off", **options)
    drafted = fitted(asked.model, copying, speculative="ngram", speculative_depth=asked.copied, **options)
    copied = compare(copies, drafted, prompts, params, asked.rounds)
    expected, _ = theory(asked.acceptance, asked.depth, 0.0)
    print(f"\n{machine()}: {asked.model} as {asked.quantization}, one request at a time, {asked.output_len} tokens\n")
    rows = [
        (f"replayed, {asked.depth} at a time, each right with {asked.acceptance:g}", replayed, expected),
        (f"n-grams, {asked.copied} at a time, of outputs that copy their prompts", copied, asked.copied + 1),
    ]
    header = ("drafts", "tokens a step", "by theory", "tokens/s without", "speed-up")
    print(
        table(
            header,
            [
                (name, f"{gained:.2f}", f"{most:.2f}", f"{speed:.1f}", f"{ratio:.2f}")
                for name, (ratio, gained, speed), most in rows
            ],
        )
    )
    return 0 if replayed[0] >= asked.wanted[0] and copied[0] >= asked.wanted[1] else 1


if __name__ == "__main__":
    sys.exit(main())
