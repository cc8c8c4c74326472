"""What bounding a context costs in quality, on trained weights; a session without an end; and what it gains in speed.

    python benchmarks/bounded_contexts.py quality MODEL [--name NAME] [--length 4096]
    python benchmarks/bounded_contexts.py endless MODEL [--tokens 100000] [--window 2048]
    python benchmarks/bounded_contexts.py speed MODEL [--context 8192] [--batch 16]

`quality` measures, for each policy and each part of a context that is held:

- perplexity of the last quarter of pieces of Python's own documentation (`pydoc_data.topics`), of `--length` tokens;
- a needle: a code in one sentence of such text, which is asked for behind it;
- pairs of keys and values, of which one is asked for;
- a system message that is to be known behind a long text, protected or not: to answer in French, or what the model's
  name is.

A bundled model knows nothing but its own conversations: perplexity is that of such ones, which training has not seen,
and in the place of the others the last one of many poems is asked for again.

`endless` reads the same text through a window, with its sinks and without; then it generates. `speed` is decoding.
MODEL is a checkpoint with a chat template, or for `speed` any; benchmarks/trained_weights.py says where some come from.
"""

import argparse
import itertools
import math
import pydoc_data.topics
import random
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import reporting

from penstock import LLM, KVPolicy, SamplingParams
from penstock.bundled.corpus.dialogue import Dialogue
from penstock.bundled.corpus.generator import training
from penstock.bundled.corpus.lexicon import load_lexicon
from penstock.bundled.corpus.poem_tasks import ask_haiku
from penstock.bundled.registry import find_bundled
from penstock.core.kv_policy import POLICY_KINDS, AskedPolicy, PolicyKind
from penstock.llm import chat_encoder

PARTS = (0.5, 0.2, 0.1)
TASKS = ("perplexity", "needle", "pair", "instruction", "instruction unprotected", "name", "name unprotected")
BUNDLED_TASKS = ("conversations", "poem")
# Of conversations that no training has had.
SEED = 1_000_000
# Of a poem with its request.
TOKENS_OF_POEM = 33
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
BLOCK = 16


class Trial(NamedTuple):
    """A conversation, and whether an answer to it, of some tokens at most, is right."""

    messages: list[dict[str, Any]]
    is_right: Callable[[str], bool]
    tokens: int = 24


def main() -> None:
    parser = reporting.parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("quality", "endless", "speed"):
        each = commands.add_parser(name)
        each.add_argument("model")
        each.add_argument("--quantization", default="auto", help="what weights are rounded to")
        each.add_argument("--device", default="cpu", help="what computes (default cpu)")
        if name == "quality":
            each.add_argument("--name", help="what the table calls the model")
            each.add_argument("--length", type=int, default=4096, help="tokens of a text (default 4096)")
            each.add_argument("--trials", type=int, default=10, help="of each kind (default 10)")
            each.add_argument("--tasks", nargs="+", choices=TASKS, help="what is measured (default all)")
        if name == "endless":
            each.add_argument("--tokens", type=int, default=100_000, help="that are read (default 100000)")
            each.add_argument("--generate", type=int, default=20_000, help="that are generated (default 20000)")
            each.add_argument("--window", type=int, default=2048, help="tokens that are held (default 2048)")
        if name == "speed":
            each.add_argument("--context", type=int, default=8192, help="tokens of each sequence (default 8192)")
            each.add_argument("--batch", type=int, default=16, help="sequences (default 16)")
            each.add_argument("--rounds", type=int, default=3, help="of all policies in turn (default 3)")
    arguments = parser.parse_args()
    {"quality": quality, "endless": endless, "speed": speed}[arguments.command](arguments)


def documentation() -> str:
    """Python's own: prose in English, with some code."""
    topics: dict[str, str] = pydoc_data.topics.topics
    return "\n\n".join(topics[name] for name in sorted(topics))


def bounds(kind: PolicyKind, tokens: int) -> KVPolicy:
    """The policy that holds this number of tokens, an eighth of them recent ones."""
    tokens = tokens // BLOCK * BLOCK
    return KVPolicy(kind=kind, tokens=tokens, sinks=16, recent=max(BLOCK, min(128, tokens // 8 // BLOCK * BLOCK)))


# Quality.


def quality(arguments: argparse.Namespace) -> None:
    length, bundled = arguments.length, find_bundled(arguments.model) is not None
    arguments.tasks = BUNDLED_TASKS if bundled else arguments.tasks or TASKS
    llm = LLM(
        arguments.model,
        device=arguments.device,
        quantization=arguments.quantization,
        speculative="off",
        max_model_len=length + 512,
        max_num_seqs=4,
    )
    rows: list[tuple[object, ...]] = [("all", "100%", *measured(llm, arguments, None, length))]
    for kind in POLICY_KINDS:
        for part in PARTS:
            row = (kind, f"{part:.0%}", *measured(llm, arguments, bounds(kind, int(part * length)), length))
            print(*row, file=sys.stderr, flush=True)
            rows.append(row)
    reporting.report(
        f"{arguments.name or arguments.model}: what is left of {length:,} tokens",
        ("policy", "held", *(_TITLES[task] for task in arguments.tasks)),
        rows,
        f"Right answers of {arguments.trials}. `snapkv` drops nothing before the end of a prompt.",
    )


_TITLES = {
    "perplexity": "perplexity",
    "needle": "needle",
    "pair": "key and value",
    "instruction": "instruction",
    "instruction unprotected": "instruction, not protected",
    "name": "name",
    "name unprotected": "name, not protected",
    "conversations": "perplexity",
    "poem": "poem",
}


def measured(llm: LLM, arguments: argparse.Namespace, policy: KVPolicy | None, length: int) -> tuple[object, ...]:
    """A row of the table."""
    haystack = words(llm, documentation(), length - 200)
    return tuple(measure(llm, task, arguments.trials, policy, length, haystack) for task in arguments.tasks)


def measure(
    llm: LLM, task: str, count: int, policy: KVPolicy | None, length: int, haystack: Sequence[str]
) -> float | int | None:
    """A cell; the same trials for all policies."""
    if task == "perplexity":
        return perplexity(llm, policy, scored_texts(llm, length))
    if task == "conversations":
        return perplexity(llm, policy, conversations(llm, length))
    kind, _, unprotected = task.partition(" ")
    return answered(llm, trials_of(kind, count, length, haystack), policy, "none" if unprotected else "system")


def trials_of(task: str, count: int, length: int, haystack: Sequence[str]) -> list[Trial]:
    """The same ones in every run."""
    rng = random.Random(task)
    match task:
        case "needle":
            return [needle(rng, haystack, DEPTHS[each % len(DEPTHS)]) for each in range(count)]
        case "pair":
            return [pair(rng, length // 2) for _ in range(count)]
        case "poem":
            return [poem(rng, length) for _ in range(count)]
        case "instruction":
            return [instruction(rng, haystack) for _ in range(count)]
        case _:
            return [name(rng, haystack) for _ in range(count)]


def perplexity(llm: LLM, policy: KVPolicy | None, pieces: list[list[int]]) -> float | None:
    """Of the last quarter of some texts of one length, each token behind those that are held."""
    if policy is not None and policy.kind == "snapkv":
        return None
    params = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=0)
    done = llm.generate([{"prompt_token_ids": piece} for piece in pieces], params, kv_policy=policy or "full")
    scores = [
        each.logprob for one in done for each in (one.prompt_logprobs or [])[-len(pieces[0]) // 4 :] if each is not None
    ]
    return math.exp(-statistics.fmean(scores))


def scored_texts(llm: LLM, length: int, texts: int = 3) -> list[list[int]]:
    """Pieces of the documentation, as token ids."""
    assert llm.tokenizer is not None
    ids = llm.tokenizer.encode(documentation())
    return [ids[each * length * 5 :][:length] for each in range(texts)]


def conversations(llm: LLM, length: int, texts: int = 10) -> list[list[int]]:
    """The beginnings of a bundled model's conversations that are as long at least, as token ids."""
    assert llm.tokenizer is not None
    encoder, found = chat_encoder(llm.tokenizer), list[list[int]]()
    for index in itertools.count():
        conversation = training(SEED, index, long_share=1.0)
        ids = encoder.encode(list(conversation.messages), tools=list(conversation.tools) or None)
        if len(ids) >= length:
            found.append(ids[:length])
        if len(found) == texts:
            break
    return found


def words(llm: LLM, text: str, tokens: int) -> list[str]:
    """The first words of a text, of about this number of tokens."""
    assert llm.tokenizer is not None
    return llm.tokenizer.decode(llm.tokenizer.encode(text[: 6 * tokens])[:tokens]).split(" ")


def needle(rng: random.Random, haystack: Sequence[str], depth: float) -> Trial:
    """A code in the midst of a text."""
    code, at = str(rng.randrange(100_000, 1_000_000)), int(depth * len(haystack))
    hidden = [*haystack[:at], f"\n\nThe secret code is {code}. Remember it.\n\n", *haystack[at:]]
    asked = " ".join(hidden) + "\n\nWhat is the secret code that the text above mentions? Answer with its digits alone."
    return Trial([{"role": "user", "content": asked}], lambda answer: code in answer)


def pair(rng: random.Random, tokens: int) -> Trial:
    """A list of names with numbers, of which one is asked for."""
    names = [f"{rng.choice(_FIRST)}{rng.choice(_SECOND)}{number}" for number in range(tokens // 14)]
    values = {name: str(rng.randrange(1000, 10_000)) for name in names}
    asked = rng.choice(names)
    text = "\n".join(f"{name} has the number {value}." for name, value in values.items())
    question = f"{text}\n\nWhich number has {asked}? Answer with the number alone."
    return Trial([{"role": "user", "content": question}], lambda answer: values[asked] in answer)


def instruction(rng: random.Random, haystack: Sequence[str]) -> Trial:
    """Something that is to be done, said before a long text."""
    system = "You answer in French, always and only in French."
    question = "What is the text above about? Answer in one short sentence."
    return Trial(behind(rng, haystack, system, question), lambda answer: bool(_FRENCH.search(answer)))


def name(rng: random.Random, haystack: Sequence[str]) -> Trial:
    """Something that is to be known, said before a long text."""
    named = rng.choice(("Marvin", "Beatrix", "Ottokar", "Philippa", "Leander"))
    system = f"You are {named}, a helpful assistant. Your name is {named}."
    return Trial(behind(rng, haystack, system, "What is your name?"), lambda answer: named in answer)


def behind(rng: random.Random, haystack: Sequence[str], system: str, question: str) -> list[dict[str, Any]]:
    """A system message, a text, a question."""
    text = " ".join(haystack[rng.randrange(len(haystack) // 8) :])
    return [{"role": "system", "content": system}, {"role": "user", "content": f"{text}\n\n{question}"}]


# Words that no English sentence has.
_FRENCH = re.compile(r"\b(le|la|les|des|du|une|est|dans|pour)\b", re.IGNORECASE)


def poem(rng: random.Random, length: int) -> Trial:
    """Poems that a bundled model wrote, of which the last one is asked for again."""
    dialogue = Dialogue(rng, "train", load_lexicon().topics)
    for _ in range(length // TOKENS_OF_POEM):
        ask_haiku(dialogue)
    dialogue.ask("repeat.poem")
    lines = dialogue.poems[-1].lines
    return Trial(dialogue.messages, lambda answer: all(line in answer for line in lines), tokens=64)


_FIRST = ("Amber", "Cedar", "Delta", "Ember", "Flint", "Grove", "Hazel", "Ivory", "Maple", "Onyx")
_SECOND = ("Bay", "Crest", "Dale", "Field", "Hill", "Lake", "Ridge", "Stone", "Vale", "Wood")


def answered(llm: LLM, trials: Sequence[Trial], policy: KVPolicy | None, protect: Any = "system") -> int:
    """How many answers are right."""
    params = SamplingParams(temperature=0.0, max_tokens=max(trial.tokens for trial in trials))
    asked = "full" if policy is None else AskedPolicy(policy=policy, protect=protect)
    done = llm.chat([trial.messages for trial in trials], params, kv_policy=asked)
    return sum(trial.is_right(each.text) for trial, each in zip(trials, done, strict=True))


# Without an end.


def endless(arguments: argparse.Namespace) -> None:
    llm = LLM(
        arguments.model,
        device=arguments.device,
        quantization=arguments.quantization,
        speculative="off",
        max_num_seqs=1,
    )
    assert llm.tokenizer is not None
    ids = llm.tokenizer.encode(documentation())[: arguments.tokens]
    params = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=0)
    rows = []
    for name, sinks in (("16 sinks", 16), ("no sinks", 0)):
        policy = KVPolicy(kind="window", tokens=arguments.window, sinks=sinks)
        [done] = llm.generate({"prompt_token_ids": ids}, params, kv_policy=policy)
        scores = [each.logprob for each in done.prompt_logprobs or [] if each is not None]
        rows.append((name, *(math.exp(-statistics.fmean(piece)) for piece in pieces_of(scores, 10))))
    tenth = len(ids) // 10
    reporting.report(
        f"Perplexity of {len(ids):,} tokens through a window of {arguments.window:,}, by tenths",
        ("", *(f"to {(each + 1) * tenth:,}" for each in range(10))),
        rows,
    )
    through(llm, ids, arguments)
    if arguments.generate:
        generated(llm, ids, arguments)


def pieces_of(values: Sequence[float], count: int) -> list[Sequence[float]]:
    """The values in pieces of one length."""
    size = len(values) // count
    return [values[each * size : (each + 1) * size] for each in range(count)]


def through(llm: LLM, ids: list[int], arguments: argparse.Namespace) -> None:
    """Tokens a second and memory, piece by piece of a text that is read."""
    policy = KVPolicy(kind="window", tokens=arguments.window, sinks=16)
    llm._core.add(llm._intake.request(ids, SamplingParams(max_tokens=1, temperature=0.0), kv_policy=policy))
    rows: list[tuple[int, float, float, float]] = []
    before, began, piece = llm.load.prefill_tokens, time.perf_counter(), len(ids) // 10
    while llm._core.has_work:
        llm._core.step()
        if (read := llm.load.prefill_tokens - before) >= piece * (len(rows) + 1):
            now, pool = time.perf_counter(), llm._core.scheduler.cache.pool
            tokens = read - (rows[-1][0] if rows else 0)
            rows.append((read, tokens / (now - began), resident(), pool.num_used / pool.num_blocks))
            began = now
    reporting.report(
        f"Read through a window of {arguments.window:,}",
        ("tokens", "tokens a second", "MiB resident", "part of the KV pool"),
        rows,
        "Sinks that are computed once more count as tokens.",
    )


def generated(llm: LLM, ids: list[int], arguments: argparse.Namespace) -> None:
    """Tokens a second and memory, piece by piece of one output."""
    policy = KVPolicy(kind="window", tokens=arguments.window, sinks=16)
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=arguments.generate, ignore_eos=True)
    request = llm._intake.request(ids[: arguments.window // 2], params, kv_policy=policy)
    rows: list[tuple[int, float, float, float]] = []
    llm._core.add(request)
    made, began, piece = 0, time.perf_counter(), max(1, arguments.generate // 10)
    while llm._core.has_work:
        for event in llm._core.step():
            made += len(event.gained.tokens)
        if made >= piece * (len(rows) + 1):
            now = time.perf_counter()
            pool = llm._core.scheduler.cache.pool
            rows.append((made, piece / (now - began), resident(), pool.num_used / pool.num_blocks))
            began = now
    reporting.report(
        f"Generated through a window of {arguments.window:,}",
        ("tokens", "tokens a second", "MiB resident", "part of the KV pool"),
        rows,
        f"At most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB.",
    )


def resident() -> float:
    """MiB of this process."""
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * resource.getpagesize() / 2**20


# Speed.


def speed(arguments: argparse.Namespace) -> None:
    context, batch = arguments.context, arguments.batch
    llm = LLM(
        arguments.model,
        device=arguments.device,
        quantization=arguments.quantization,
        speculative="off",
        max_model_len=context + 256,
        max_num_seqs=batch,
    )
    rng = random.Random(0)
    prompts = [[rng.randrange(10, 1000) for _ in range(context)] for _ in range(batch)]
    policies: dict[str, KVPolicy | None] = {"all": None}
    policies |= {f"{kind}, 20%": bounds(kind, context // 5) for kind in POLICY_KINDS}
    speeds: dict[str, list[float]] = {name: [] for name in policies}
    for number in range(arguments.rounds):
        for name, policy in policies.items():
            speeds[name].append(decoded(llm, prompts, policy))
            print(f"round {number + 1}, {name}: {speeds[name][-1]:.1f} tokens/s", file=sys.stderr, flush=True)
    base = speeds["all"]
    reporting.report(
        f"Decoding {batch} sequences of {context:,} tokens, tokens a second",
        ("held", "tokens a second, median", "of the whole context, median", "least", "greatest"),
        [
            (name, statistics.median(found), *spread([one / whole for one, whole in zip(found, base, strict=True)]))
            for name, found in speeds.items()
        ],
        f"{arguments.rounds} rounds of all in turn.",
    )


def spread(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Median, least and greatest."""
    return statistics.median(ratios), min(ratios), max(ratios)


def decoded(llm: LLM, prompts: Sequence[list[int]], policy: KVPolicy | None, tokens: int = 64) -> float:
    """Tokens a second of all sequences together, from when the last has its first token."""
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    for prompt in prompts:
        llm._core.add(llm._intake.request(prompt, params, kv_policy=policy))
    made: dict[int, int] = {}
    began, before, found = 0.0, 0, 0.0
    while llm._core.has_work:
        for event in llm._core.step():
            made[event.request_id] = made.get(event.request_id, 0) + len(event.gained.tokens)
        if not began and len(made) == len(prompts):
            began, before = time.perf_counter(), sum(made.values())
        if began and not found and max(made.values()) == tokens:
            found = (sum(made.values()) - before) / (time.perf_counter() - began)
    return found


if __name__ == "__main__":
    main()
