"""Vectors beside another program's: rankings and correlations see what differs; texts have the lengths asked for."""

import embedding_quality
import numpy as np
import pytest


def test_rankings() -> None:
    angles = np.array([0.0, 0.3, 0.5, 1.2])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1)
    assert embedding_quality.ranked(2 * vectors, vectors) == (4, 0.0)
    moved = np.array([0.0, 0.3, 0.5, 0.75])
    others = np.stack([np.cos(moved), np.sin(moved)], 1)
    found = embedding_quality.ranked(others, vectors)
    # To the third text alone, the last is now nearer than the first.
    assert found.same == 3
    assert found.gap == pytest.approx(np.cos(0.5) - np.cos(0.7))


def test_correlation_is_of_ranks() -> None:
    values = np.array([0.1, 5.0, 2.0, 3.0])
    assert embedding_quality.spearman(values, values**3) == 1.0
    assert embedding_quality.spearman(values, -values) == -1.0


def test_pairs_are_within_a_line_and_across() -> None:
    lines = embedding_quality.sentences()
    found = embedding_quality.pairs(lines)
    assert len(lines) == 50 and len(set(found)) == 350
    assert sum(a // 4 == b // 4 for a, b in found) == 300


def test_texts_fill_their_lengths() -> None:
    texts = embedding_quality.texts_of(["one", "two"], 20, 100, {"one": 1, "two": 3})
    lengths = sorted(2 + text.split().count("one") + 3 * text.split().count("two") for text in texts)
    assert lengths[0] == 3 and lengths[-1] == 100 and lengths == sorted(np.geomspace(3, 100, 20).astype(int).tolist())
