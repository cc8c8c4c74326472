"""Heads learn what the target says, and what was trained is what the engine drafts with."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock import SamplingParams
from penstock.kernels.cpu.native import OBSTACLE
from penstock.runtime.parts import ExecutorParts
from penstock.speculation.proposer import Proposal, Wanted
from support.fitted import fitted
from training import export, loop
from training.data import Corpus
from training.heads import EagleHead, MedusaHeads, eagle_loss, export_heads, medusa_loss
from training.model import Decoder, ModelShape
from training.recipe import Phase, Recipe
from training.train import Lesson

HEADS = 2


def recipe(name: str, vocabulary: int, layers: int, tokens: int) -> Recipe:
    shape = ModelShape(vocabulary, layers, width=32, heads=2, kv_heads=1, intermediate=64, context=256)
    phases = (Phase(positions=64, rows=4, share=1.0),)
    return Recipe(name, shape, tokens, phases, matrix_rate=0.02, embedding_rate=5e-3, warmup_steps=2, hint_weight=0.5)


@pytest.fixture(scope="module")
def target(work: Path, tokenizer, corpus: Corpus) -> tuple[Decoder, Path]:
    """A little model that has learned a little, and its directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "WORK", work)
        patch.setattr(export, "WORK", work)
        torch.manual_seed(0)
        chosen = recipe("target", tokenizer.get_vocab_size(), 2, 64 * 4 * 50)
        lesson = Lesson(Decoder(chosen.shape), chosen.hint_weight)
        loop.Run(chosen, lesson, lesson, corpus, torch.device("cpu")).train()
        export.export_model(lesson.decoder, chosen, work / "target" / "model")
    return export.load_model(work / "target" / "model", chosen.shape).requires_grad_(False), work / "target" / "model"


def trained(kind: str, model: Decoder, corpus: Corpus, work: Path) -> tuple[EagleHead | MedusaHeads, list[float]]:
    chosen = recipe(kind, model.shape.vocabulary, 1, 64 * 4 * 25)
    torch.manual_seed(1)
    heads = EagleHead(chosen.shape) if kind == "eagle" else MedusaHeads(HEADS, model)
    loss = eagle_loss(model, heads, corpus.begin) if isinstance(heads, EagleHead) else medusa_loss(model, heads)
    run = loop.Run(chosen, heads, loss, corpus, torch.device("cpu"))
    batches = itertools.islice(loop._batches(corpus, chosen, 0, 0), run.schedule.steps)
    losses = []
    for run.step, batch in enumerate(batches):
        losses.append(run.train_step(batch))
    export_heads(heads, work / kind)
    return heads, losses


def drafts_by(model: Decoder, heads: EagleHead | MedusaHeads, text: list[int]) -> list[int]:
    """What the trained module drafts behind a text."""
    with torch.no_grad():
        states = model.hidden(torch.tensor([text[:-1]]))
        if isinstance(heads, MedusaHeads):
            return [int(heads.logits(head, states[0, -1]).argmax()) for head in range(HEADS)]
        embedded = model.model.embed_tokens(torch.tensor([text[1:]]))
        return [int(model.logits(heads(embedded, states, [len(text) - 1])[0, -1]).argmax())]


@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_what_is_trained_is_what_drafts(
    kind: str, target: tuple[Decoder, Path], corpus: Corpus, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "WORK", work)
    model, directory = target
    heads, losses = trained(kind, model, corpus, work)
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    options = {"speculative_depth": 1 if kind == "eagle" else HEADS, "draft_model": str(work / kind)}
    said: list[tuple[int, list[int]]] = []

    def taking_down(parts: ExecutorParts) -> ExecutorParts:
        assert parts.drafting is not None
        proposer = parts.drafting.proposer
        propose = proposer.propose

        def propose_and_say(wanted: Sequence[Wanted]) -> list[Proposal]:
            found = propose(wanted)
            said.append((wanted[0].state.position, found[0].tokens))
            return found

        monkeypatch.setattr(proposer, "propose", propose_and_say)
        return parts

    sizes = {"threads": 1, "max_model_len": 128, "max_num_seqs": 1}
    llm = fitted(str(directory), taking_down, speculative=kind, **sizes, **options)
    prompt = corpus.tokens[int(corpus.starts[0]) :][:20].astype(int).tolist()
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    (done,) = llm.generate([{"prompt_token_ids": prompt}], params)
    texts = [([*prompt, *done.token_ids[:position]], tokens) for position, tokens in said if tokens]
    same = [tokens == drafts_by(model, heads, text)[: len(tokens)] for text, tokens in texts]
    # The engine computes in bfloat16, and what is about as likely may change places.
    assert len(same) > 5 and np.mean(same) > 0.7
