"""Speed of OpenVINO GenAI's continuous batching on a model that export_openvino.py made."""

import time

import numpy as np
import openvino as ov
import openvino_genai as genai
from workload import arguments_parser, measure


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--dynamic-quantization-group", help="group size of the activations' quantization")
    arguments = parser.parse_args()
    properties: dict[str, object] = {"INFERENCE_NUM_THREADS": arguments.threads}
    if arguments.dynamic_quantization_group is not None:
        properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = arguments.dynamic_quantization_group
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 4
    scheduler.max_num_seqs = 64
    scheduler.max_num_batched_tokens = 2048
    scheduler.enable_prefix_caching = False
    scheduler.dynamic_split_fuse = True
    started = time.perf_counter()
    pipeline = genai.ContinuousBatchingPipeline(
        arguments.model, scheduler_config=scheduler, device="CPU", properties=properties
    )
    print(f"ready in {time.perf_counter() - started:.1f} s")

    def generate(prompts: list[list[int]], output_length: int) -> float:
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = output_length
        config.ignore_eos = True
        config.do_sample = False
        inputs = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        begun = time.perf_counter()
        pipeline.generate(inputs, [config] * len(inputs))
        return time.perf_counter() - begun

    measure(generate, arguments)


if __name__ == "__main__":
    main()
