"""Does mteb score a served embedder, and are its scores those of sentence-transformers?

Serves MODEL, a folder of sentence-transformers, and lets mteb score it over HTTP on the pairs of `similar_texts.txt`;
then mteb scores the folder itself in the same way. A pair's own score is 3 where it says the same, 2 where a detail
differs, 1 where it shares a subject, 0 where it has nothing in common. Ends with status 1 where scores differ by more
than 0.0001.

    python benchmarks/score_with_mteb.py MODEL --mteb PYTHON

PYTHON is the interpreter of an environment with mteb and openai.
"""

import json
import subprocess
import tempfile
from pathlib import Path

import embedding_quality
import reporting
from serving import HOST, serving

READER = Path(__file__).parent / "peers" / "mteb_scores.py"
# Of a line's first sentence with each of the others.
COMMON = {(0, 1): 3, (0, 2): 2, (0, 3): 1}
WITHIN = 1e-4


def pairs() -> list[tuple[str, str, int]]:
    """Pairs of sentences, and how much they have in common."""
    lines = embedding_quality.sentences()
    texts = [text for line in lines for text in line]
    found = []
    for one, other in embedding_quality.pairs(lines):
        if one // 4 != other // 4:
            found.append((texts[one], texts[other], 0))
        elif (common := COMMON.get((one % 4, other % 4))) is not None:
            found.append((texts[one], texts[other], common))
    return found


def scored(python: str, *arguments: object) -> dict[str, float]:
    """What mteb says."""
    asked = subprocess.run([python, READER, *map(str, arguments)], check=True, capture_output=True, text=True)
    scores: dict[str, float] = json.loads(asked.stdout.splitlines()[-1])
    return scores


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", type=Path, help="a folder of sentence-transformers")
    parser.add_argument("--mteb", required=True, help="interpreter of an environment with mteb and openai")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pairs.json"
        file.write_text(json.dumps(pairs()), encoding="utf-8")
        with serving(str(arguments.model), ["--dtype", "float32"]) as server:
            server.wait_until_ready()
            ours = scored(arguments.mteb, file, f"http://{HOST}:{server.port}/v1", arguments.model.name)
        theirs = scored(arguments.mteb, file, arguments.model)
    rows = [[name, f"{ours[name]:.4f}", f"{theirs[name]:.4f}"] for name in sorted(ours.keys() & theirs.keys())]
    reporting.report(f"mteb, {len(pairs())} pairs", ["score", "served", "sentence-transformers"], rows)
    if any(abs(ours[name] - theirs[name]) > WITHIN for name, *_ in rows) or not rows:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
