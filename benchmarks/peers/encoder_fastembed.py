"""The part of fastembed in ../encoder_speed.py: ONNX Runtime with weights in int8, which it does not make itself.

They are those that `encoder_sentence_transformers.py` has exported before, in the same folder.
"""

from pathlib import Path
from typing import Any

from encoder_work import serve
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType


def main() -> None:
    serve(load)


def load(options: dict[str, Any]) -> Any:
    """As `serve` needs it."""
    folder = Path(options["folder"]) / "onnx"
    TextEmbedding.add_custom_model(
        model="measured",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="measured"),
        dim=0,
        model_file="onnx/model_qint8_avx512_vnni.onnx",
    )
    model = TextEmbedding("measured", specific_model_path=str(folder), threads=options["threads"])
    tokenizer = model.model.tokenizer
    tokenizer.enable_truncation(options["max_tokens"])

    def embed(texts: list[str]) -> Any:
        return list(model.embed(texts, batch_size=64))

    return embed, lambda texts: len(tokenizer.encode(texts[-1]).ids)


if __name__ == "__main__":
    main()
