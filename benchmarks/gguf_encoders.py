"""GGUF files of encoders, read by Penstock and by llama.cpp: do both make the same tokens and vectors of a text?

Small random models are written as llama.cpp's converter writes them, in float32 and as Q8_0.

    PYTHONPATH=tests python benchmarks/gguf_encoders.py --python PYTHON

PYTHON is the interpreter of an environment with llama-cpp-python.
"""

import json
import random
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import reporting
from gguf import GGMLQuantizationType as Kind

from penstock import LLM
from support.encoders_made import ENCODERS, WORDS, make, write_gguf

READER = Path(__file__).parent / "peers" / "gguf_vectors.py"
TEXTS = 20


def texts() -> list[str]:
    """Of 1 to 34 words, some in capitals, with accents and with marks."""
    luck, found = random.Random(0), []
    for number in range(TEXTS):
        words = luck.choices(WORDS, k=1 + 35 * number // TEXTS)
        found.append(" ".join(luck.choice((word, word.upper(), f"{word},", word.replace("o", "ö"))) for word in words))
    return found


def compared(family: str, kind: Kind, python: str, folder: Path) -> list[object]:
    """A row: texts whose tokens are the same, the largest difference of a number, and 1 less the least cosine."""
    file = write_gguf(family, make(family, folder / "model"), folder / "model.gguf", kind)
    given, result = folder / "texts.json", folder / "result.json"
    given.write_text(json.dumps(texts()), encoding="utf-8")
    subprocess.run([python, READER, file, given, result], check=True, stderr=subprocess.DEVNULL)
    vectors, tokens = json.loads(result.read_text())
    llm = LLM(str(file), max_model_len=78)
    assert llm.tokenizer is not None, "the file has one"
    same = sum(llm.tokenizer.encode(text) == theirs for text, theirs in zip(texts(), tokens, strict=True))
    ours, theirs = np.array(llm.embed(texts())), np.array(vectors)
    off = f"{np.abs(ours - theirs).max():.1e}", f"{1 - (ours * theirs).sum(1).min():.1e}"
    return [f"`{ENCODERS[family][0]}`", family, kind.name, f"{same} of {len(tokens)}", *off]


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--python", required=True, help="interpreter of an environment with llama-cpp-python")
    parser.add_argument("families", nargs="*", default=list(ENCODERS), help="of these; otherwise all")
    arguments = parser.parse_args()
    rows = []
    for family in arguments.families:
        for kind in (Kind.F32, Kind.Q8_0):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(compared(family, kind, arguments.python, Path(folder)))
    header = ("architecture", "model", "tensors", "the same tokens", "largest difference", "1 − least cosine")
    print(reporting.machine())
    print(reporting.table(header, rows))


if __name__ == "__main__":
    main()
