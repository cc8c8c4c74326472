"""How fast are encoder-decoders beside CTranslate2, on the same weights, sources and lengths of outputs?

    python benchmarks/translators.py --ctranslate2 PYTHON [--folder FOLDER] [--threads 2] [--rounds 7] [--beams 1 4]

PYTHON is the interpreter of an environment of its own, made by `pip install torch==2.13.0`, then
`pip install torch==2.13.0 transformers ctranslate2 sentencepiece`. The weights are random, of the shape of an OPUS-MT
model and of T5's base size, in int8 on both sides. Each round has other sources of 30 tokens, from which both programs
make outputs of 40 tokens, one after the other: greedily, and the best one that a search with beams finds. A ratio is of
one round, and the table has the medians. Penstock keeps keys and values in bfloat16, CTranslate2 in float32, as int8
has it there. `--folder` keeps the models.
"""

import itertools
import json
import random
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import reporting

from penstock import LLM, BeamSearchParams, SamplingParams

SHAPES = ("marian", "t5")
SOURCE, OUTPUT = 30, 40
DRIVER = Path(__file__).parent / "peers" / "ctranslate2_texts.py"
# Token ids that both have, and that mean nothing special.
FIRST, END = 10, 30_000


class CTranslate2:
    """A child process that computes outputs."""

    def __init__(self, python: str, folder: Path, threads: int) -> None:
        command = [python, str(DRIVER), "run", str(folder), str(threads)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version: str = self._answer()["version"]

    def seconds(self, sources: list[list[int]], beams: int) -> float:
        """How long it takes for outputs of all sources."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"sources": sources, "tokens": OUTPUT, "beams": beams}) + "\n")
        self._child.stdin.flush()
        answer = self._answer()
        assert answer["tokens"] == [OUTPUT] * len(sources), "all outputs are of the length that was asked for"
        return float(answer["seconds"])

    def close(self) -> None:
        """End the child."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise SystemExit("CTranslate2's process has ended; its error is above.")
        answer: dict[str, Any] = json.loads(line)
        return answer


def own_seconds(llm: LLM, sources: list[list[int]], beams: int) -> float:
    """The same of Penstock."""
    prompts = [{"prompt_token_ids": source} for source in sources]
    greedy = SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)
    search = BeamSearchParams(beam_width=beams, n=1, max_tokens=OUTPUT, ignore_eos=True)
    start = time.perf_counter()
    found = llm.generate(prompts, greedy) if beams == 1 else llm.beam_search(prompts, search)
    seconds = time.perf_counter() - start
    assert all(len(each.token_ids) == OUTPUT for each in found)
    return seconds


def rounds(llm: LLM, other: CTranslate2, batch: int, beams: int, count: int) -> list[tuple[float, float]]:
    """Seconds of both, for each round; one more comes before, which warms up."""
    found = []
    for number in range(count + 1):
        draw = random.Random(number)
        sources = [[draw.randrange(FIRST, END) for _ in range(SOURCE)] for _ in range(batch)]
        pair = own_seconds(llm, sources, beams), other.seconds(sources, beams)
        if number:
            found.append(pair)
    return found


def main() -> None:
    """Measure all shapes, and print the table."""
    parser = reporting.parser(__doc__)
    parser.add_argument("--ctranslate2", required=True, metavar="PYTHON")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--threads", type=int, default=reporting.cores())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32], help="sources at a time")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    options = parser.parse_args()
    rows, version = [], ""
    with tempfile.TemporaryDirectory() as temporary:
        for shape in SHAPES:
            folder = (options.folder or Path(temporary)) / shape
            if not folder.exists():
                subprocess.run([options.ctranslate2, str(DRIVER), "make", shape, str(folder)], check=True)
            llm = LLM(str(folder), dtype="bfloat16", quantization="int8", threads=options.threads)
            other = CTranslate2(options.ctranslate2, folder, options.threads)
            version = other.version
            for beams, batch in itertools.product(options.beams, options.batches):
                found = rounds(llm, other, batch, beams, options.rounds)
                own, peer = (statistics.median(each) for each in zip(*found, strict=True))
                ratio = statistics.median(theirs / mine for mine, theirs in found)
                rows.append((shape, beams, batch, batch * OUTPUT / own, batch * OUTPUT / peer, ratio))
            other.close()
    reporting.report(
        f"Encoder-decoders beside CTranslate2 {version}, {options.threads} threads",
        ("shape", "beams", "sources at a time", "Penstock, tokens/s", "CTranslate2, tokens/s", "times as fast"),
        rows,
        "Random weights in int8; a source has 30 tokens, an output 40, with the time for the source in it.",
    )


if __name__ == "__main__":
    main()
