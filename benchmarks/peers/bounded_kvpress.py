"""Answers behind contexts that kvpress's presses have compressed; see ../bounded_peers.py.

A press drops keys and values at a prompt's end, for each layer and each KV head what it scores least there. The prompt
itself, with its question, is read whole: once for all presses, since none of them changes how it is read.
"""

import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from kvpress import BasePress, DecodingPress, ObservedAttentionPress, ScorerPress, SnapKVPress, StreamingLLMPress
from transformers import AutoModelForCausalLM, DynamicCache
from workload import trials_parser, versions

SINKS = 16
# Tokens that are scored before a window is moved.
PIECE = 16
Make = Callable[[float], ScorerPress]
PRESSES: dict[str, Make] = {
    "StreamingLLMPress": lambda ratio: StreamingLLMPress(ratio, n_sink=SINKS),
    "SnapKVPress": SnapKVPress,
}
# These look at the attention of the whole prompt, which only the slowest implementation shows.
OBSERVING: dict[str, Make] = {"ObservedAttentionPress": ObservedAttentionPress}


class Several(BasePress):
    """Keeps what each of some presses leaves of a prompt, and leaves the prompt as it is."""

    def __init__(self, presses: Sequence[ScorerPress]) -> None:
        self._presses = presses
        self.caches = [DynamicCache() for _ in presses]

    def compress(
        self,
        module: torch.nn.Module,
        hidden_states: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        attentions: torch.Tensor,
        kwargs: dict[str, Any],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        for press, cache in zip(self._presses, self.caches, strict=True):
            left = press.compress(module, hidden_states, keys, values, attentions, kwargs)
            cache.update(*left, module.layer_idx)
        return keys, values


def main() -> None:
    arguments = trials_parser(__doc__).parse_args()
    trials = json.loads(arguments.trials.read_text())
    torch.set_num_threads(arguments.threads)
    rows: list[dict[str, Any]] = []
    for attention, presses in (("sdpa", PRESSES), ("eager", OBSERVING)):
        model = AutoModelForCausalLM.from_pretrained(
            arguments.model, dtype=torch.bfloat16, attn_implementation=attention
        ).eval()
        rows += rows_of(model, trials, presses)
    print(json.dumps({"rows": rows, "versions": versions(("kvpress", "transformers", "torch"))}))


@torch.inference_mode()
def rows_of(model: Any, trials: dict[str, Any], presses: dict[str, Make]) -> Iterator[dict[str, Any]]:
    """A row for the whole context, and one for each press and number of tokens."""
    asked = [(name, held) for name in presses for held in trials["held"]]
    answers: dict[str, list[list[list[int]]]] = {}
    for task, prompts in trials["prompts"].items():
        each = [answered(model, prompt, presses, asked, trials) for prompt in prompts]
        answers[task] = [list(of_press) for of_press in zip(*each, strict=True)]
    for number, (name, held) in enumerate([("all", None), *asked]):
        scored = name in ("all", "StreamingLLMPress") and "StreamingLLMPress" in presses
        yield {
            "policy": name,
            "held": held,
            "answers": {task: found[number] for task, found in answers.items()},
            "perplexity": perplexity(model, trials["texts"], held) if scored else None,
        }


def press_for(make: Make, tokens: int, held: int) -> ScorerPress:
    """What leaves so much of a prompt of this length."""
    # The half keeps the number from being rounded down to the one before it.
    return make(max(0.0, 1 - (held + 0.5) / tokens))


def answered(
    model: Any, prompt: list[int], presses: dict[str, Make], asked: list[tuple[str, int]], trials: dict[str, Any]
) -> list[list[int]]:
    """Answers to a prompt: behind all of it, and behind what each press has left."""
    cache, several = DynamicCache(), Several([press_for(presses[name], len(prompt), held) for name, held in asked])
    with several(model):
        logits = model(torch.tensor([prompt]), past_key_values=cache, logits_to_keep=1).logits
    for (_, held), left in zip(asked, several.caches, strict=True):
        assert all(layer.keys.shape[2] == min(held, len(prompt)) for layer in left.layers)
    first = int(logits[0, -1].argmax())
    return [answer(model, first, len(prompt), each, trials) for each in (cache, *several.caches)]


def answer(model: Any, first: int, position: int, cache: DynamicCache, trials: dict[str, Any]) -> list[int]:
    """What is chosen greedily; positions are those in the whole text."""
    made = [first]
    while len(made) < trials["tokens"] and made[-1] not in trials["stop"]:
        positions = torch.tensor([[position + len(made) - 1]])
        logits = model(torch.tensor([made[-1:]]), past_key_values=cache, position_ids=positions).logits
        made.append(int(logits[0, -1].argmax()))
    return made


def perplexity(model: Any, texts: list[list[int]], held: int | None) -> float:
    """Of the last quarter of each text, behind a window and its sinks that together are at most `held` tokens."""
    scores: list[float] = []
    for ids in texts:
        start, cache = len(ids) - len(ids) // 4, DynamicCache()
        # What is scored is in the cache already when it is scored, so that much less is left from before.
        left = None if held is None else held - PIECE
        first = nullcontext() if left is None else press_for(PRESSES["StreamingLLMPress"], start, left)(model)
        with first:
            logits = [model(torch.tensor([ids[:start]]), past_key_values=cache, logits_to_keep=1).logits[0]]
        window = nullcontext()
        if left is not None:
            window = DecodingPress(StreamingLLMPress(n_sink=SINKS), compression_interval=1, target_size=left)(model)
        with window:
            for at in range(start, len(ids) - 1, PIECE):
                piece = torch.tensor([ids[at : min(at + PIECE, len(ids) - 1)]])
                positions = torch.arange(at, at + piece.shape[1])[None]
                logits.append(model(piece, past_key_values=cache, position_ids=positions).logits[0])
                assert left is None or cache.get_seq_length() == left
        logprobs = torch.cat(logits).float().log_softmax(-1)
        scores += logprobs.gather(1, torch.tensor(ids[start:])[:, None])[:, 0].tolist()
    return math.exp(-statistics.fmean(scores))


if __name__ == "__main__":
    main()
