"""How fast do texts become vectors or scores, beside sentence-transformers, fastembed, llama.cpp and vLLM?

    PYTHONPATH=tests python benchmarks/encoder_speed.py MODEL [--sentence-transformers PYTHON] [--fastembed PYTHON]
        [--llama-cpp PYTHON] [--vllm PYTHON] [--tokens 16 128 512] [--batches 1 64] [--rounds 5] [--shape base]
        [--documents 100]

MODEL is a folder with an encoder as sentence-transformers stores it. All engines get the same texts, each of a number
of tokens, in processes of their own with as many threads, one after the other in each round: A B C, A B C, … Each turns
texts into vectors, tokens included. With `--documents`, it gives them scores for a query: tokens are those of a pair.
`peers/README.md` says how environments are made. With `--shape base`, MODEL is the folder of another encoder, whose
tokenizer a random one in the shape of BERT base gets; rerankers are always random, in the shape of MODEL.
"""

import json
import random
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import reporting
from engine_workers import Worker

PEERS = Path(__file__).parent / "peers"
# How long a measurement is to take at least; texts of few tokens are repeated.
LEAST_SECONDS = 0.5
QUERY_WORDS = 8


class Contender(NamedTuple):
    """An engine with one kind of weights.

    Attributes:
        group: engines whose results are of one precision are compared with each other.
    """

    engine: str
    kind: str
    group: str
    driver: str


CONTENDERS = (
    Contender("Penstock", "float32", "float", "encoder_penstock.py"),
    Contender("Penstock", "bfloat16", "float", "encoder_penstock.py"),
    Contender("Penstock", "int8", "int8", "encoder_penstock.py"),
    Contender("Penstock", "int4", "int8", "encoder_penstock.py"),
    Contender("sentence-transformers", "torch float32", "float", "encoder_sentence_transformers.py"),
    Contender("sentence-transformers", "torch bfloat16", "float", "encoder_sentence_transformers.py"),
    Contender("sentence-transformers", "ONNX int8", "int8", "encoder_sentence_transformers.py"),
    Contender("sentence-transformers", "OpenVINO float32", "float", "encoder_sentence_transformers.py"),
    Contender("sentence-transformers", "OpenVINO int8", "int8", "encoder_sentence_transformers.py"),
    Contender("fastembed", "ONNX int8", "int8", "encoder_fastembed.py"),
    Contender("llama.cpp", "BF16", "float", "encoder_llama_cpp.py"),
    Contender("llama.cpp", "Q8_0", "int8", "encoder_llama_cpp.py"),
    Contender("vLLM", "float32", "float", "encoder_vllm.py"),
    Contender("vLLM", "bfloat16", "float", "encoder_vllm.py"),
)


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--sentence-transformers", metavar="PYTHON", help="interpreter of its environment")
    parser.add_argument("--fastembed", metavar="PYTHON", help="interpreter of its environment, which has onnx, too")
    parser.add_argument("--llama-cpp", metavar="PYTHON", help="interpreter of its environment")
    parser.add_argument("--vllm", metavar="PYTHON", help="interpreter of its environment")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 128, 512])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=reporting.cores(), help="of all engines (default: all cores)")
    parser.add_argument("--documents", type=int, help="score this number of documents instead of making vectors")
    parser.add_argument("--shape", choices=("base",), help="a random encoder in this shape instead of MODEL's own")
    arguments = parser.parse_args()
    interpreters = {
        "Penstock": sys.executable,
        "sentence-transformers": arguments.sentence_transformers,
        "fastembed": arguments.fastembed,
        "llama.cpp": arguments.llama_cpp,
        "vLLM": arguments.vllm,
    }
    if arguments.documents:
        interpreters |= dict.fromkeys(("fastembed", "llama.cpp", "vLLM"))
    chosen = [each for each in CONTENDERS if interpreters[each.engine]]
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model
        if arguments.shape:
            model = write_base(arguments.model, Path(folder) / "base")
        if arguments.documents:
            model = write_reranker(model, Path(folder) / "reranker")
            arguments.batches = [arguments.documents]
        words = single_tokens(model)
        workers = {}
        for each in chosen:
            options = {
                "model": str(model),
                "kind": each.kind,
                "scores": bool(arguments.documents),
                "threads": arguments.threads,
                "folder": folder,
                "max_tokens": max(arguments.tokens),
                "files": {kind: str(write_file(model, kind, Path(folder))) for kind in kinds_of_files(each)},
            }
            workers[each] = Worker(str(PEERS / each.driver), options, interpreters[each.engine])
            # One after the other: fastembed reads what sentence-transformers has written.
            workers[each].ask(words[:2], 1)
        for tokens in arguments.tokens:
            for batch in arguments.batches:
                texts = make_texts(words, tokens, batch)
                if arguments.documents:
                    texts = make_pairs(words, tokens, batch)
                report(tokens, batch, measure(workers, texts, tokens, arguments.rounds))
        for worker in workers.values():
            worker.close()


def single_tokens(model: Path) -> list[str]:
    """Words of letters that are one token each."""
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    return sorted(word for word in vocabulary if word.isascii() and word.isalpha() and word.islower() and len(word) > 3)


def make_texts(words: list[str], tokens: int, count: int) -> list[str]:
    """Texts that have this number of tokens with those at both ends."""
    luck = random.Random(tokens)
    return [" ".join(luck.choices(words, k=tokens - 2)) for _ in range(count)]


def make_pairs(words: list[str], tokens: int, count: int) -> list[str]:
    """A query, and documents that have with it this number of tokens, with the three of the template."""
    luck = random.Random(tokens)
    return [
        " ".join(luck.choices(words, k=QUERY_WORDS)),
        *(" ".join(luck.choices(words, k=tokens - QUERY_WORDS - 3)) for _ in range(count)),
    ]


def measure(
    workers: dict[Contender, Worker], texts: list[str], tokens: int, rounds: int
) -> dict[Contender, list[float]]:
    """Seconds for all texts, of each engine and round."""
    times = {}
    for contender, worker in workers.items():
        answer = worker.ask(texts, 1)
        if answer["tokens"] != tokens:
            raise SystemExit(f"{contender.engine} reads {answer['tokens']} tokens where {tokens} are meant.")
        again = worker.ask(texts, 1)["seconds"]
        times[contender] = max(1, round(LEAST_SECONDS / again))
    found: dict[Contender, list[float]] = {contender: [] for contender in workers}
    for _ in range(rounds):
        for contender, worker in workers.items():
            found[contender].append(worker.ask(texts, times[contender])["seconds"])
    return found


def report(tokens: int, batch: int, found: dict[Contender, list[float]]) -> None:
    """A table of one load; Penstock's speed is compared with the best other one of its precision, round by round."""
    rows = []
    for contender, seconds in found.items():
        median = statistics.median(seconds)
        ratios = None
        others = [
            times for other, times in found.items() if other.group == contender.group and other.engine != "Penstock"
        ]
        if contender.engine == "Penstock" and others:
            best = min(others, key=statistics.median)
            ratios = f"{statistics.median(b / own for b, own in zip(best, seconds, strict=True)):.2f}"
        rows.append((contender.engine, contender.kind, 1000 * median, batch / median, ratios))
    reporting.report(
        f"{batch} texts of {tokens} tokens",
        ("engine", "weights", "ms", "texts a second", "times the best other of float or int8"),
        rows,
    )
    sys.stdout.flush()


def kinds_of_files(contender: Contender) -> tuple[str, ...]:
    """What GGUF files an engine reads."""
    return (contender.kind,) if contender.engine == "llama.cpp" else ()


def write_file(model: Path, kind: str, folder: Path) -> Path:
    """The GGUF file of an encoder of BERT's form, with matrices of a kind."""
    from gguf import GGMLQuantizationType

    from support.encoders_made import write_gguf

    return write_gguf("bert", model, folder / f"{kind}.gguf", GGMLQuantizationType[kind])


def write_base(tokenizer: Path, folder: Path) -> Path:
    """A random encoder in the shape of BERT base with what another one has beside weights."""
    import torch
    from transformers import BertConfig, BertModel

    shutil.copytree(tokenizer, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.bin", "*.onnx", "*.xml"))
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=30522)).save_pretrained(folder)
    for path in folder.glob("*_Pooling/config.json"):
        config: dict[str, Any] = json.loads(path.read_text())
        config["word_embedding_dimension"] = 768
        path.write_text(json.dumps(config))
    return folder


def write_reranker(encoder: Path, folder: Path) -> Path:
    """A random cross-encoder in the shape of an encoder, with its tokenizer."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    folder.mkdir()
    for path in encoder.glob("*token*"):
        shutil.copy(path, folder)
    torch.manual_seed(0)
    config = BertConfig.from_pretrained(encoder, num_labels=1)
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main()
