"""Makes vectors of texts with sentence-transformers, and writes them as float32, one after another.

    python st_vectors.py MODEL TEXTS.json LONGEST DTYPE RESULT

Runs in an environment of its own, which has sentence-transformers. LONGEST is the number of tokens beyond which it cuts
texts, DTYPE what it computes in. It pads texts that it computes together, 32 at a time.
"""

import json
import sys
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer


def main() -> None:
    folder, texts, longest, dtype, result = sys.argv[1:]
    model = SentenceTransformer(folder, device="cpu").to(getattr(torch, dtype))
    model.max_seq_length = int(longest)
    vectors = model.encode(json.loads(Path(texts).read_text(encoding="utf-8")), batch_size=32, convert_to_tensor=True)
    Path(result).write_bytes(vectors.float().numpy().tobytes())


if __name__ == "__main__":
    main()
