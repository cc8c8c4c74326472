"""Loads a GGUF file with llama.cpp, and writes vectors of length 1 of some texts, and their tokens, as JSON.

    python gguf_vectors.py MODEL.gguf TEXTS.json RESULT

Runs in an environment of its own, which has llama-cpp-python.
"""

import json
import sys
from pathlib import Path

import numpy as np
from llama_cpp import Llama


def main() -> None:
    file, given, result = sys.argv[1:]
    texts = json.loads(Path(given).read_text(encoding="utf-8"))
    model = Llama(file, embedding=True, n_ctx=512, n_batch=512, n_ubatch=512, verbose=False)
    made = np.array([model.create_embedding(text)["data"][0]["embedding"] for text in texts])
    vectors = made / np.linalg.norm(made, axis=1, keepdims=True)
    tokens = [model.tokenize(text.encode(), special=True) for text in texts]
    Path(result).write_text(json.dumps([vectors.tolist(), tokens]), encoding="utf-8")


if __name__ == "__main__":
    main()
