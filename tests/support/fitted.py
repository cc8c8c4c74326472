"""Engines in the test's process whose executors have parts of the test's own."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock import LLM
from penstock.assembly.build import build_engine
from penstock.runtime.parts import ExecutorParts
from penstock.speculation.proposer import Proposer

Fit = Callable[[ExecutorParts], ExecutorParts]


def fitted(model: str, fit: Fit, **options: Any) -> LLM:
    """An engine with what `fit` makes of its executor's parts."""
    return LLM(model, build=functools.partial(build_engine, fit=fit), **options)


def drafting(proposer: Proposer) -> Fit:
    """Has `proposer` draft in the place of the one that the configuration asks for."""

    def fit(parts: ExecutorParts) -> ExecutorParts:
        assert parts.drafting is not None, "the engine drafts"
        return replace(parts, drafting=replace(parts.drafting, proposer=proposer))

    return fit
