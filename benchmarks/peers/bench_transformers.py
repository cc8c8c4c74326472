"""Speed of transformers on a checkpoint in Hugging Face's layout, on the CPU."""

import time

import torch
from transformers import AutoModelForCausalLM
from workload import arguments_parser, measure


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="default bfloat16")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    started = time.perf_counter()
    dtype = getattr(torch, arguments.dtype)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=dtype).eval()
    print(f"loaded in {time.perf_counter() - started:.1f} s")

    def generate(prompts: list[list[int]], output_length: int) -> float:
        ids = torch.tensor(prompts)
        begun = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=output_length,
                min_new_tokens=output_length,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=None,
            )
        return time.perf_counter() - begun

    measure(generate, arguments)


if __name__ == "__main__":
    main()
