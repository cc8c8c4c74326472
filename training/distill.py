"""Train the draft to say what the target says: its whole distribution, on the corpus and on the target's own answers.

    python -m training.distill [--device auto|cpu|cuda] [--tokens N]

The loss is the Kullback-Leibler divergence from the target's distribution to the draft's at every token that the model
has to say (Hinton et al., 2015); half of the text is written by the target itself, greedily and sampled, because that
is what a draft meets (DistillSpec, Zhou et al., 2023).
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.progress import track
from safetensors.numpy import load_file, save_file
from torch import Tensor

from penstock import LLM, SamplingParams
from penstock.bundled.corpus.dialogue import Conversation
from penstock.bundled.corpus.generator import training
from penstock.llm import chat_encoder
from training.data import Corpus, learned_positions, load_corpus
from training.export import export_model, load_model, load_tokenizer
from training.loop import Run, pick_device
from training.model import Decoder, document_mask
from training.recipe import CONTEXT, DRAFT_RECIPE, SEED, TARGET, TARGET_RECIPE, WORK

# Conversations that the corpus does not have, each cut before one of the model's turns: the target then says it itself.
ANSWERED = 24_000
TEMPERATURES = (0.0, 0.7, 1.0)
MOST_TOKENS = 120
BATCH = 2_000


def prompts_of(llm: LLM, conversations: Sequence[Conversation]) -> list[dict[str, Any]]:
    """For each conversation the token ids up to one of the model's turns: the first, the second and so on by turns."""
    assert llm.tokenizer is not None
    encoder = chat_encoder(llm.tokenizer)
    prompts = []
    for index, conversation in enumerate(conversations):
        turns = [at for at, message in enumerate(conversation.messages) if message["role"] == "assistant"]
        before = conversation.messages[: turns[index % len(turns)]]
        ids = encoder.encode(before, variables={"tools": list(conversation.tools) or None})
        if len(ids) + MOST_TOKENS <= CONTEXT:
            prompts.append({"prompt_token_ids": ids})
    return prompts


def answered_by_target(model: Path) -> Corpus:
    """The target's own answers, as a corpus to learn from."""
    llm = LLM(str(model), max_num_seqs=128)
    tokenizer = load_tokenizer()
    end = tokenizer.token_to_id("<|end|>")
    sequences: list[list[int]] = []
    for start in track(range(0, ANSWERED, BATCH), "The target answers"):
        prompts = prompts_of(llm, [training(SEED + 1, index) for index in range(start, start + BATCH)])
        params = [
            SamplingParams(temperature=TEMPERATURES[index % len(TEMPERATURES)], max_tokens=MOST_TOKENS, seed=index)
            for index in range(len(prompts))
        ]
        for prompt, output in zip(prompts, llm.generate(prompts, params), strict=True):
            said = [token for token in output.token_ids if token != end]
            sequences.append([*prompt["prompt_token_ids"], *said, *([end] if output.finish_reason == "stop" else [])])
    tokens = np.concatenate([np.array(ids, dtype=np.uint16) for ids in sequences])
    starts = np.cumsum([0, *map(len, sequences[:-1])], dtype=np.int64)
    learned = learned_positions(tokens, tokenizer.token_to_id("<|assistant|>"), end)
    return Corpus(tokens, learned, starts, np.zeros(0, np.uint64))


def joined(first: Corpus, second: Corpus) -> Corpus:
    """Both corpora as one."""
    return Corpus(
        np.concatenate((first.tokens, second.tokens)),
        np.concatenate((first.learned, second.learned)),
        np.concatenate((first.starts, second.starts + len(first.tokens))),
        first.poems,
    )


def excerpt(corpus: Corpus, tokens: int) -> Corpus:
    """The last conversations of a corpus, the long ones, and as many before them as make `tokens`."""
    first = int(np.searchsorted(corpus.starts, max(0, len(corpus.tokens) - tokens)))
    start = int(corpus.starts[first])
    return Corpus(corpus.tokens[start:], corpus.learned[start:], corpus.starts[first:] - start, corpus.poems)


def main() -> None:
    """Let the target answer (once), train the draft, write it to build/training/haiku-draft/model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=int, default=DRAFT_RECIPE.tokens, help="tokens to train on, padding included")
    options = parser.parse_args()
    recipe = dataclasses.replace(DRAFT_RECIPE, tokens=options.tokens)
    target_directory = WORK / TARGET_RECIPE.name / "model"
    # Named by the target's weights, so that a new target answers anew.
    digest = hashlib.blake2b((target_directory / "model.safetensors").read_bytes(), digest_size=4).hexdigest()
    answers_file = WORK / f"answers-{digest}.safetensors"
    if not answers_file.exists():
        save_file(vars(answered_by_target(target_directory)), answers_file)
    answers = Corpus(**load_file(answers_file))
    device = pick_device(options.device)
    target = load_model(target_directory, TARGET).to(device)
    torch.manual_seed(SEED)
    model = Decoder(recipe.shape)

    def loss(hidden: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        with torch.no_grad():
            visible = document_mask(rows[:, :-1], run.begin, TARGET.heads, torch.bfloat16)
            wanted = F.log_softmax(target.logits(target.hidden(rows[:, :-1], visible)[mask]).float(), dim=-1)
        said = F.log_softmax(model.logits(hidden).float(), dim=-1)
        return F.kl_div(said, wanted, reduction="sum", log_target=True)

    run = Run(recipe, model, loss, device, load_tokenizer())
    run.resume()
    corpus = joined(answers, excerpt(load_corpus(), len(answers.tokens)))
    run.train(corpus)
    export_model(model, recipe, WORK / recipe.name / "model")


if __name__ == "__main__":
    main()
