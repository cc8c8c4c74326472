"""Export a checkpoint in Hugging Face's layout to OpenVINO, its weights in 4 or 8 bits."""

import argparse
from pathlib import Path

import openvino
from openvino_tokenizers import convert_tokenizer
from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
from transformers import AutoTokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="directory of the checkpoint")
    parser.add_argument("out", type=Path, help="directory to write")
    parser.add_argument("--bits", type=int, choices=(4, 8), default=4, help="4: in groups; 8: in channels (default 4)")
    parser.add_argument("--group-size", type=int, default=128, help="inputs that share a scale (4 bits; default 128)")
    arguments = parser.parse_args()
    if arguments.bits == 4:
        config = OVWeightQuantizationConfig(bits=4, sym=True, group_size=arguments.group_size, ratio=1.0)
    else:
        config = OVWeightQuantizationConfig(bits=8, sym=True)
    model = OVModelForCausalLM.from_pretrained(arguments.model, export=True, quantization_config=config)
    model.save_pretrained(arguments.out)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    tokenizer.save_pretrained(arguments.out)
    encoder, decoder = convert_tokenizer(tokenizer, with_detokenizer=True)
    openvino.save_model(encoder, arguments.out / "openvino_tokenizer.xml")
    openvino.save_model(decoder, arguments.out / "openvino_detokenizer.xml")


if __name__ == "__main__":
    main()
