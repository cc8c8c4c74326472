"""Clients of OpenAI's embeddings, unchanged, get the vectors that the model makes."""

import json
import subprocess
from pathlib import Path

import numpy as np

from penstock import LLM
from support.coding_agents import FOLDER, find_program
from support.encoders_made import WORDS, make
from support.live_server import serving

PROGRAM = Path(__file__).resolve().parent / "programs" / "embedders.py"


def test_each_gets_the_vectors_of_the_model(tmp_path: Path) -> None:
    python = find_program("embedders", FOLDER / "embedders" / "bin" / "python")
    model = make("bert", tmp_path / "tiny-bert")
    texts = [" ".join(WORDS[first : first + 9]) for first in range(0, 45, 9)]
    expected = LLM(str(model)).embed([*texts[1:], texts[0]])
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HAYSTACK_TELEMETRY_ENABLED": "False"}
    with serving(model) as server:
        command = [python, PROGRAM, f"{server.base}/v1", "tiny-bert", *texts]
        asked = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert asked.returncode == 0, asked.stderr
    found = json.loads(asked.stdout)
    assert set(found) == {"openai", "langchain-openai", "llama-index-embeddings-openai", "haystack-ai"}
    for client, vectors in found.items():
        np.testing.assert_allclose(vectors, expected, atol=1e-6, err_msg=client)
