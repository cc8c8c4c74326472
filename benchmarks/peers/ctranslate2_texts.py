"""Makes a random encoder-decoder and its int8 form for CTranslate2, and computes outputs with that as it is told.

    python ctranslate2_texts.py make SHAPE FOLDER
    python ctranslate2_texts.py run FOLDER THREADS

Runs in an environment of its own, which has ctranslate2, transformers and torch. SHAPE is "marian", that of an OPUS-MT
model, or "t5", of T5's base size. `run` reads a line of JSON for each job, with `sources` (lists of token ids), the
number of `tokens` that an output has, and of `beams` that search for it, and answers with the seconds it took.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import ctranslate2

INT8 = "ctranslate2-int8"
MARIAN = {
    "vocab_size": 58101,
    "decoder_vocab_size": 58101,
    "d_model": 512,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
    "max_position_embeddings": 512,
    "activation_function": "swish",
    "scale_embedding": True,
    "pad_token_id": 58100,
    "eos_token_id": 0,
    "decoder_start_token_id": 58100,
    "forced_eos_token_id": None,
}
T5 = {
    "vocab_size": 32128,
    "d_model": 768,
    "d_kv": 64,
    "d_ff": 3072,
    "num_layers": 12,
    "num_heads": 12,
    "feed_forward_proj": "relu",
    "decoder_start_token_id": 0,
}


def make(shape: str, folder: Path) -> None:
    """Write both forms of the model, where they are not there yet."""
    import torch
    import transformers
    from ctranslate2.converters import transformers as converters

    torch.manual_seed(0)
    if shape == "marian":
        model: Any = transformers.MarianMTModel(transformers.MarianConfig(**MARIAN))
        loader = converters.MarianMTLoader()
    else:
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5))
        loader = converters.T5Loader()
    model.eval().save_pretrained(folder)
    spec = loader.get_model_spec(model)
    # Its last token is padding, which CTranslate2 has no row for.
    tokens = [f"t{index}" for index in range(model.config.vocab_size - (shape == "marian"))]
    tokens[model.config.eos_token_id], tokens[2], tokens[3] = "</s>", "<unk>", "<pad>"
    spec.config.bos_token = spec.config.decoder_start_token = "<pad>"
    spec.config.eos_token, spec.config.unk_token = "</s>", "<unk>"
    spec.config.add_source_eos = False
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.validate()
    spec.optimize(quantization="int8")
    (folder / INT8).mkdir(exist_ok=True)
    spec.save(str(folder / INT8))


def run(folder: Path, threads: int) -> None:
    """Answer jobs until there are no more."""
    translator = ctranslate2.Translator(
        str(folder / INT8), device="cpu", inter_threads=1, intra_threads=threads, compute_type="int8"
    )
    print(json.dumps({"version": ctranslate2.__version__}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        sources = [[f"t{token}" for token in source] for source in job["sources"]]
        length = job["tokens"]
        start = time.perf_counter()
        found = translator.translate_batch(
            sources, beam_size=job["beams"], min_decoding_length=length, max_decoding_length=length, max_batch_size=0
        )
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "tokens": [len(each.hypotheses[0]) for each in found]}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], Path(sys.argv[3]))
    else:
        run(Path(sys.argv[2]), int(sys.argv[3]))
