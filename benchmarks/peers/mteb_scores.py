"""Lets mteb score an embedder on pairs of sentences, and prints the scores as JSON.

    python mteb_scores.py PAIRS.json FOLDER              # with sentence-transformers
    python mteb_scores.py PAIRS.json ADDRESS MODEL       # a served model, with OpenAI's client

Runs in an environment of its own, which has mteb and openai. PAIRS.json lists [text, other text, score].
"""

import json
import sys
from pathlib import Path
from typing import Any

import mteb
import numpy as np
from datasets import Dataset, DatasetDict
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models.abs_encoder import AbsEncoder
from openai import OpenAI

PAIRS = Path(sys.argv[1])


class SimilarTexts(AbsTaskSTS):
    """Pairs whose scores say how much they have in common."""

    metadata = TaskMetadata(
        name="SimilarTexts",
        description="Pairs of sentences.",
        dataset={"path": str(PAIRS), "revision": "1"},
        type="STS",
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="cosine_spearman",
    )
    min_score, max_score = 0, 3

    def load_data(self, *_given: Any, **_more: Any) -> None:
        """From the file, not from a hub."""
        rows = zip(*json.loads(PAIRS.read_text(encoding="utf-8")), strict=True)
        columns = dict(zip(("sentence1", "sentence2", "score"), map(list, rows), strict=True))
        self.dataset = DatasetDict({"test": Dataset.from_dict(columns)})
        self.data_loaded = True


class Served(AbsEncoder):
    """A model that a server has."""

    mteb_model_meta = None

    def __init__(self, address: str, model: str) -> None:
        self._client, self._model = OpenAI(base_url=address, api_key="unused"), model

    def encode(self, inputs: Any, **_more: Any) -> np.ndarray:
        """A vector for each text of the batches."""
        texts = [text for batch in inputs for text in batch["text"]]
        made = self._client.embeddings.create(model=self._model, input=texts)
        return np.array([each.embedding for each in made.data])


def main() -> None:
    if len(sys.argv) == 3:
        from sentence_transformers import SentenceTransformer

        model: Any = SentenceTransformer(sys.argv[2], device="cpu")
    else:
        model = Served(*sys.argv[2:])
    result = mteb.evaluate(model, SimilarTexts(), cache=None)
    (scores,) = result.task_results[0].scores["test"]
    print(json.dumps({name: score for name, score in scores.items() if isinstance(score, float)}))


if __name__ == "__main__":
    main()
