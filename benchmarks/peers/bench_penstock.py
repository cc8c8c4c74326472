"""Speed of Penstock on a checkpoint, rounded when it is loaded if asked, or on a GGUF file."""

import argparse
import time

from workload import MAX_LENGTH, MAX_SEQUENCES, Engine, arguments_parser, drive


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument(
        "--quantization", default="none", help="auto (of a GGUF file: its blocks), none, int8 or int4 (default none)"
    )
    parser.add_argument("--quantize-head", help="int8: the output head at 8 bits (default: as the other weights)")
    parser.add_argument("--ranks", type=int, default=1, help="that share --threads and have a part of each layer")
    drive(parser.parse_args(), ("penstock", "torch"), load)


def load(arguments: argparse.Namespace) -> Engine:
    from penstock import LLM, SamplingParams

    rounding = {"quantization": arguments.quantization, "quantize_head": arguments.quantize_head}
    llm = LLM(
        arguments.model,
        threads=arguments.threads,
        tensor_parallel_size=arguments.ranks,
        max_num_seqs=MAX_SEQUENCES,
        max_model_len=MAX_LENGTH,
        enable_prefix_caching=False,
        # The peers draft nothing either.
        speculative="off",
        **rounding,
    )

    def generate(prompts: list[list[int]], output_length: int) -> float:
        params = SamplingParams(temperature=0.0, max_tokens=output_length, ignore_eos=True)
        begun = time.perf_counter()
        llm.generate(prompts, params)
        return time.perf_counter() - begun

    return Engine(
        generate,
        weight_bytes(arguments.model, **rounding),
        {**rounding, "ranks": arguments.ranks, "kernels": kernels()},
    )


def weight_bytes(model: str, quantization: str, quantize_head: str | None) -> int:
    """Bytes of projections and routers that a token takes, and of the head, with which these share the embedding."""
    from penstock.assembly.prepare import prepare
    from penstock.configuration.options import EngineOptions
    from penstock.core.config import QUANTIZED_BYTES
    from penstock.core.kv import DTYPE_BYTES

    options = EngineOptions.of(model=model, quantization=quantization, quantize_head=quantize_head)
    prepared = prepare(options, api_beside=False)
    if prepared.config.model.quantization == "own":
        # The embedding is read as the head. Of experts, a token has some.
        located = prepared.checkpoint.locate(prepared.declaration)
        read = (spec for spec in prepared.declaration.weights if spec.role in ("linear", "head", "router"))
        return int(sum(sum(located[part.name].nbytes for part in spec.parts) * spec.used / spec.size for spec in read))
    sizes = {"none": DTYPE_BYTES[prepared.config.model.dtype], **QUANTIZED_BYTES}
    declaration = prepared.declaration
    body = sum(spec.used for spec in declaration.weights if spec.role == "linear")
    head = declaration.parameters_in("head", "embedding")
    # Routers are float32 whatever the others are.
    routers = declaration.parameters_in("router") * DTYPE_BYTES["float32"]
    resolved = prepared.config.model
    return int(body * sizes[resolved.quantization] + head * sizes[resolved.quantize_head] + routers)


def kernels() -> str:
    """Which instruction set the native kernels use, or why there are none."""
    from penstock.kernels.cpu.native import OBSTACLE, native

    return str(native.instruction_set()) if OBSTACLE is None else f"torch's operations: {OBSTACLE}"


if __name__ == "__main__":
    main()
