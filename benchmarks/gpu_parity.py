"""Whether a GPU computes what the processor does, on trained weights.

Conversations that nothing was trained or calibrated on are computed by both, each at once: in float32 on the processor,
in the dtype on the GPU. Of the model's own turns, the most likely token has to be the same at 99% of the positions, and
the KL divergence to be 1e-3 nats at the most. Then both answer greedily in float32, token by token, which has to give
the same tokens; so has transformers on the GPU. Ends with status 1 where a bound is not met.

    python benchmarks/gpu_parity.py haiku
"""

import argparse
import sys
from pathlib import Path

import reporting
import torch
from transformers import AutoModelForCausalLM

from penstock import LLM, SamplingParams
from penstock.assembly.scorer import load_scorer
from penstock.compression.scoring import COMPARISON_SEED, ScoredText, TextScorer, conversations
from penstock.configuration.options import EngineOptions

SAME_TOP, KL = 0.99, 1e-3


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", nargs="?", default="haiku", help="a checkpoint with its tokenizer (default haiku)")
    parser.add_argument("--device", default="cuda", help="default cuda")
    parser.add_argument("--dtype", default="bfloat16", help="on the GPU, of the first part (default bfloat16)")
    parser.add_argument("--texts", type=int, default=128, help="conversations (default 128)")
    parser.add_argument("--context", type=int, default=512, help="tokens of each at most (default 512)")
    parser.add_argument("--answers", type=int, default=32, help="prompts that are answered greedily (default 32)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of an answer (default 64)")
    arguments = parser.parse_args()
    here = load_scorer(EngineOptions.of(model=arguments.model, dtype="float32", speculative="off"), arguments.context)
    count = max(arguments.texts, arguments.answers)
    texts = conversations(here.path, here.vocab_size, arguments.context, count, seed=COMPARISON_SEED)
    met = [
        *logits_agree(arguments, here, texts[: arguments.texts]),
        tokens_agree(arguments, here.path, texts[: arguments.answers]),
    ]
    sys.exit(not all(met))


def logits_agree(arguments: argparse.Namespace, here: TextScorer, texts: list[ScoredText]) -> tuple[bool, bool]:
    """Whether the most likely tokens, and the distributions, are the same within the bounds."""
    there = load_scorer(
        EngineOptions.of(model=arguments.model, dtype=arguments.dtype, device=arguments.device, speculative="off"),
        arguments.context,
    )
    same, divergences = [], []
    for text in texts:
        # What a token is compared by is computed at the one before it.
        at = text.compared.nonzero()[:, 0] - 1
        ours, theirs = (scorer.logits(text.ids)[at].double().log_softmax(-1) for scorer in (here, there))
        same.append(ours.argmax(1) == theirs.argmax(1))
        divergences.append((ours.exp() * (ours - theirs)).sum(1))
    top, kl = torch.cat(same).double().mean().item(), torch.cat(divergences).mean().item()
    print(f"{sum(map(len, same)):,} positions in {arguments.dtype}: same most likely token {top:.3%}, KL {kl:.2e}")
    return top >= SAME_TOP, kl <= KL


def tokens_agree(arguments: argparse.Namespace, path: Path, texts: list[ScoredText]) -> bool:
    """Whether greedy answers in float32 have the same tokens, transformers' among them."""
    found = []
    # To be answered from the middle on.
    prompts = [text.ids[: len(text.ids) // 2] for text in texts]
    params = SamplingParams(temperature=0.0, max_tokens=arguments.tokens, ignore_eos=True)
    for device in ("cpu", arguments.device):
        llm = LLM(arguments.model, dtype="float32", device=device, max_model_len=1024, speculative="off")
        found.append([each.token_ids for each in llm.generate(prompts, params)])
    ours, mine = found
    theirs = answers_of_transformers(path, prompts, arguments.tokens)
    for name, others in (("the processor", ours), ("transformers", theirs)):
        equal = sum(each == other for each, other in zip(mine, others, strict=True))
        print(f"greedy answers in float32 with the same {arguments.tokens} tokens as {name}: {equal} of {len(mine)}")
    return mine == ours == theirs


def answers_of_transformers(path: Path, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Greedy tokens of the same checkpoint, one prompt after another, on the GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to(device).eval()
    answers = []
    for ids in prompts:
        given, cache, answer = torch.tensor([ids], device=device), None, []
        for _ in range(tokens):
            with torch.inference_mode():
                found = model(given, past_key_values=cache, use_cache=True)
            given, cache = found.logits[:, -1:].argmax(-1), found.past_key_values
            answer.append(int(given))
        answers.append(answer)
    return answers


if __name__ == "__main__":
    main()
