"""The score of a document for a query where each token has a vector."""

import numpy as np

from penstock.core.vectors import vectors_at
from penstock.text.late_interaction import LateText


def compared(text: LateText, vectors: bytes) -> bytes:
    """Of the vectors of a text's tokens those that are compared."""
    return b"".join(vectors_at(text.places, vectors, len(text.ids)))


def maxsim(query: bytes, document: bytes, size: int) -> float:
    """For each vector of the query its largest dot product with one of the document's, added up.

    Both are float32, one vector of `size` numbers after another. Khattab and Zaharia, ColBERT, 2020, equation 3.
    """
    ours, theirs = (np.frombuffer(each, np.float32).reshape(-1, size) for each in (query, document))
    if not len(ours) or not len(theirs):
        return 0.0
    return float((ours.astype(np.float64) @ theirs.T.astype(np.float64)).max(axis=1).sum())
