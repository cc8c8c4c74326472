"""Speed of vLLM on a checkpoint in Hugging Face's layout, on the CPU; quantized ones too."""

import json
import os
import time

from workload import arguments_parser, measure


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--engine-options", default="{}", help="JSON object of further arguments for vllm.LLM")
    arguments = parser.parse_args()
    # vLLM reads these when it is imported. One process, so that times hold no transport.
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{arguments.threads - 1}")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["HF_HUB_OFFLINE"] = "1"
    from vllm import LLM, SamplingParams

    started = time.perf_counter()
    llm = LLM(
        model=arguments.model,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=2048,
        enable_prefix_caching=False,
        max_num_seqs=64,
        **json.loads(arguments.engine_options),
    )
    print(f"ready in {time.perf_counter() - started:.1f} s")

    def generate(prompts: list[list[int]], output_length: int) -> float:
        params = SamplingParams(temperature=0, max_tokens=output_length, ignore_eos=True, detokenize=False)
        begun = time.perf_counter()
        llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return time.perf_counter() - begun

    measure(generate, arguments)


if __name__ == "__main__":
    main()
