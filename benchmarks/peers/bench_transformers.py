"""Speed of transformers on a checkpoint in Hugging Face's layout, on the CPU."""

import argparse
import time

from workload import Engine, arguments_parser, drive, files_bytes


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="default bfloat16")
    drive(parser.parse_args(), ("transformers", "torch"), load)


def load(arguments: argparse.Namespace) -> Engine:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.dtype)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=dtype).eval()

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

    stored = files_bytes(arguments.model)
    return Engine(generate, stored if dtype == torch.bfloat16 else 2 * stored, {"dtype": arguments.dtype})


if __name__ == "__main__":
    main()
