"""Train the draft to say what the target says: its whole distribution, on the corpus and on the target's own answers.

    python -m training.distill [--device auto|cpu|cuda] [--tokens N]

The loss is the Kullback-Leibler divergence from the target's distribution to the draft's at every token that the model
has to say (Hinton et al., 2015); half of the text is written by the target itself, greedily and sampled, because that
is what a draft meets (DistillSpec, Zhou et al., 2023).
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor

from penstock import LLM, SamplingParams
from penstock.bundled.corpus.dialogue import Conversation
from penstock.bundled.corpus.generator import training
from penstock.bundled.corpus.turns import turns_of
from penstock.llm import chat_encoder
from training.data import Corpus, Encoded, load_corpus, make_corpus_of, save_corpus, without_hints
from training.export import export_model, load_model, load_tokenizer, weights_fingerprint
from training.loop import Batch, Run, pick_device
from training.model import Decoder
from training.recipe import CONTEXT, DRAFT_RECIPE, SEED, TARGET, TARGET_RECIPE, WORK

# Conversations that the corpus does not have, each cut before one of the model's turns: the target then says it itself.
ANSWERED = 36_000
TEMPERATURES = (0.0, 0.7, 1.0)
MOST_TOKENS = 120
BATCH = 2_000


def prompts_of(llm: LLM, conversations: Sequence[Conversation]) -> list[dict[str, Any]]:
    """For each conversation the token ids up to one of the model's turns: the first, the second and so on by turns."""
    assert llm.tokenizer is not None
    encoder = chat_encoder(llm.tokenizer)
    prompts = []
    for index, conversation in enumerate(conversations):
        turns = list(turns_of(conversation))
        ids = turns[index % len(turns)].prompt_ids(encoder.encode)
        if len(ids) + MOST_TOKENS <= CONTEXT:
            prompts.append({"prompt_token_ids": ids})
    return prompts


def answered_by_target(model: Path) -> Corpus:
    """The target's own answers, as a corpus to learn from; nothing else of its conversations is learned."""
    llm = LLM(str(model), max_num_seqs=128)
    tokenizer = load_tokenizer()
    end = tokenizer.token_to_id("<|end|>")
    conversations: list[Encoded] = []
    for start in track(range(0, ANSWERED, BATCH), "The target answers"):
        prompts = prompts_of(llm, [training(SEED + 1, index) for index in range(start, start + BATCH)])
        params = [
            SamplingParams(temperature=TEMPERATURES[index % len(TEMPERATURES)], max_tokens=MOST_TOKENS, seed=index)
            for index in range(len(prompts))
        ]
        for prompt, output in zip(prompts, llm.generate(prompts, params), strict=True):
            ids, mask = transcript(prompt["prompt_token_ids"], output.token_ids, output.finish_reason == "stop", end)
            conversations.append(without_hints(ids, mask))
    return make_corpus_of(tokenizer, conversations)


def transcript(prompt: list[int], answer: Sequence[int], ended: bool, end: int) -> tuple[list[int], NDArray[np.bool_]]:
    """A prompt and its answer, and the mask of the answer; `end` closes it where it was not cut at its limit."""
    said = [token for token in answer if token != end] + ([end] if ended else [])
    return [*prompt, *said], np.arange(len(prompt) + len(said)) >= len(prompt)


def joined(first: Corpus, second: Corpus) -> Corpus:
    """Both corpora as one, with the poems of the first."""
    arrays = {name: np.concatenate((getattr(first, name), getattr(second, name))) for name in Encoded._fields}
    return dataclasses.replace(
        first, **arrays, starts=np.concatenate((first.starts, second.starts + len(first.tokens)))
    )


def excerpt(corpus: Corpus, tokens: int) -> Corpus:
    """The last conversations of a corpus, the long ones, and as many before them as make `tokens`."""
    first = int(np.searchsorted(corpus.starts, max(0, len(corpus.tokens) - tokens)))
    start = int(corpus.starts[first])
    arrays = {name: getattr(corpus, name)[start:] for name in Encoded._fields}
    return dataclasses.replace(corpus, **arrays, starts=corpus.starts[first:] - start)


def material(target: Path) -> Corpus:
    """What those who draft for the target learn from: its answers, which it gives once, and as much of its corpus."""
    # Named by the target's weights, so that a new target answers anew.
    answers_file = WORK / f"answers-{weights_fingerprint(target)}.safetensors"
    if not answers_file.exists():
        save_corpus(answered_by_target(target), answers_file)
    answers = load_corpus(answers_file)
    return joined(answers, excerpt(load_corpus(), len(answers.tokens)))


def divergence(target: Decoder, wanted: Tensor, logits: Tensor) -> Tensor:
    """The Kullback-Leibler divergence from what the target's states `wanted` say to what `logits` do, summed."""
    with torch.no_grad():
        chances = F.log_softmax(target.logits(wanted).float(), dim=-1)
    return F.kl_div(F.log_softmax(logits.float(), dim=-1), chances, reduction="sum", log_target=True)


def main() -> None:
    """Let the target answer (once), train the draft, write it to build/training/haiku-draft/model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=int, default=DRAFT_RECIPE.tokens, help="tokens to train on, padding included")
    options = parser.parse_args()
    recipe = dataclasses.replace(DRAFT_RECIPE, tokens=options.tokens)
    target_directory = WORK / TARGET_RECIPE.name / "model"
    corpus = material(target_directory)
    device = pick_device(options.device)
    target = load_model(target_directory, TARGET).to(device)
    torch.manual_seed(SEED)
    model = Decoder(recipe.shape)

    def loss(batch: Batch, lengths: list[int]) -> Tensor:
        with torch.no_grad():
            wanted = target.hidden(batch.inputs, lengths)[batch.mask]
        return divergence(target, wanted, model.logits(model.hidden(batch.inputs, lengths)[batch.mask]))

    run = Run(recipe, model, loss, corpus, device)
    run.resume()
    run.train()
    export_model(model, recipe, WORK / recipe.name / "model")


if __name__ == "__main__":
    main()
