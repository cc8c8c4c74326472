"""Speed of OpenVINO GenAI's continuous batching on a model that export_openvino.py made."""

import argparse
import time
from typing import Any

from workload import KV_GIB, MAX_LENGTH, MAX_SEQUENCES, Engine, arguments_parser, drive, files_bytes


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--dynamic-quantization-group", help="group size of the activations' quantization")
    drive(parser.parse_args(), ("openvino", "openvino-genai", "optimum-intel", "nncf"), load)


def load(arguments: argparse.Namespace) -> Engine:
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": arguments.threads}
    if arguments.dynamic_quantization_group is not None:
        properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = arguments.dynamic_quantization_group
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = KV_GIB
    scheduler.max_num_seqs = MAX_SEQUENCES
    scheduler.max_num_batched_tokens = MAX_LENGTH
    scheduler.enable_prefix_caching = False
    scheduler.dynamic_split_fuse = True
    pipeline = genai.ContinuousBatchingPipeline(
        arguments.model, scheduler_config=scheduler, device="CPU", properties=properties
    )

    def generate(prompts: list[list[int]], output_length: int) -> float:
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = output_length
        config.ignore_eos = True
        config.do_sample = False
        inputs = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        begun = time.perf_counter()
        pipeline.generate(inputs, [config] * len(inputs))
        return time.perf_counter() - begun

    return Engine(generate, files_bytes(arguments.model, "openvino_model.bin"), properties)


if __name__ == "__main__":
    main()
