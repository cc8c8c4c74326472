"""Speed of llama.cpp on a GGUF file, through llama-cpp-python's low-level interface.

It times whole decode steps of the library, without sampling, which is a little less than the others do.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import llama_cpp
from workload import PREFILL_LENGTH, Engine, Generate, arguments_parser, drive


def main() -> None:
    drive(arguments_parser(__doc__).parse_args(), ("llama-cpp-python",), load)


def load(arguments: argparse.Namespace) -> Engine:
    llama_cpp.llama_backend_init()
    parameters = llama_cpp.llama_model_default_params()
    parameters.use_mmap = True
    model = llama_cpp.llama_model_load_from_file(arguments.model.encode(), parameters)
    if not model:
        raise SystemExit(f"llama.cpp could not load {arguments.model}.")
    generate = make_generate(model, arguments.threads)
    return Engine(generate, Path(arguments.model).stat().st_size, {"flash attention": True, "unified KV": True})


def make_generate(model: Any, threads: int) -> Generate:
    """Prefills and decodes all prompts together, in a context that is made anew when their number changes."""
    contexts: dict[tuple[int, int], Any] = {}

    def context_for(sequences: int, tokens: int) -> Any:
        if (sequences, tokens) not in contexts:
            for context in contexts.values():
                llama_cpp.llama_free(context)
            contexts.clear()
            contexts[sequences, tokens] = make_context(model, sequences, tokens, threads)
        context = contexts[sequences, tokens]
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        return context

    def generate(prompts: list[list[int]], output_length: int) -> float:
        count, length = len(prompts), len(prompts[0])
        context = context_for(count, max(PREFILL_LENGTH + 16, count * (length + 128)))
        begun = time.perf_counter()
        for sequence, prompt in enumerate(prompts):
            decode(context, prompt, list(range(length)), [sequence] * length, last_only=True)
        for step in range(output_length - 1):
            tokens = [prompt[step % length] for prompt in prompts]
            decode(context, tokens, [length + step] * count, list(range(count)), last_only=False)
        llama_cpp.llama_synchronize(context)
        return time.perf_counter() - begun

    return generate


def make_context(model: Any, sequences: int, tokens: int, threads: int) -> Any:
    """A context for so many sequences with so many tokens in all, one KV cache shared by them."""
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = tokens
    parameters.n_batch, parameters.n_ubatch = 2048, PREFILL_LENGTH
    parameters.n_seq_max = sequences
    parameters.n_threads = parameters.n_threads_batch = threads
    # Names differ between versions of the library, and setting an unknown one is an error there.
    for name, value in (("flash_attn_type", 1), ("kv_unified", True)):
        if any(field[0] == name for field in parameters._fields_):
            setattr(parameters, name, value)
    context = llama_cpp.llama_init_from_model(model, parameters)
    if not context:
        raise SystemExit(f"llama.cpp could not make a context for {sequences} sequences of {tokens} tokens in all.")
    return context


def decode(context: Any, tokens: list[int], positions: list[int], sequences: list[int], *, last_only: bool) -> None:
    """One step of the library; logits of the last token, or of all."""
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for index, (token, position, sequence) in enumerate(zip(tokens, positions, sequences, strict=True)):
        batch.token[index], batch.pos[index] = token, position
        batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
        batch.logits[index] = int(not last_only or index == len(tokens) - 1)
    status = llama_cpp.llama_decode(context, batch)
    llama_cpp.llama_batch_free(batch)
    if status:
        raise SystemExit(f"llama.cpp's decode failed with status {status}.")
    # Computation is asynchronous until somebody looks at the logits.
    llama_cpp.llama_get_logits_ith(context, -1)


if __name__ == "__main__":
    main()
