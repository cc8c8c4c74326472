"""The part of sentence-transformers in ../encoder_speed.py, with torch, ONNX Runtime or OpenVINO.

ONNX's int8 is its dynamic quantization for this processor; OpenVINO's is quantized with the benchmark's own kind of
texts by NNCF, which by default calibrates with texts from elsewhere.
"""

import os
from pathlib import Path
from typing import Any

from encoder_work import serve


def main() -> None:
    serve(load)


def load(options: dict[str, Any]) -> Any:
    """As `serve` needs it."""
    threads, kind = options["threads"], options["kind"]
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    torch.set_num_threads(threads)
    model = {"torch": load_torch, "ONNX": load_onnx, "OpenVINO": load_openvino}[kind.split()[0]](options)
    if options["scores"]:
        return lambda texts: model.predict([(texts[0], text) for text in texts[1:]], batch_size=64), lambda texts: len(
            model.tokenizer(texts[0], texts[-1])["input_ids"]
        )
    model.max_seq_length = options["max_tokens"]
    return lambda texts: model.encode(texts, batch_size=64), lambda texts: len(model.tokenizer(texts[-1])["input_ids"])


def _opened(options: dict[str, Any], model: str, **arguments: Any) -> Any:
    from sentence_transformers import CrossEncoder, SentenceTransformer

    kind = CrossEncoder if options["scores"] else SentenceTransformer
    return kind(model, device="cpu", **arguments)


def load_torch(options: dict[str, Any]) -> Any:
    """The model with numbers of the type that `kind` names."""
    return _opened(options, options["model"], model_kwargs={"torch_dtype": options["kind"].split()[1]})


def load_onnx(options: dict[str, Any]) -> Any:
    """Weights in int8, activations as they come."""
    from sentence_transformers import export_dynamic_quantized_onnx_model

    exported = str(Path(options["folder"]) / "onnx")
    kwargs = {"session_options": _session(options["threads"]), "provider": "CPUExecutionProvider"}
    whole = _opened(options, options["model"], backend="onnx", model_kwargs=dict(kwargs))
    whole.save_pretrained(exported)
    export_dynamic_quantized_onnx_model(whole, "avx512_vnni", exported)
    kwargs["file_name"] = "onnx/model_qint8_avx512_vnni.onnx"
    return _opened(options, exported, backend="onnx", model_kwargs=kwargs)


def _session(threads: int) -> Any:
    import onnxruntime

    session = onnxruntime.SessionOptions()
    session.intra_op_num_threads = threads
    session.inter_op_num_threads = 1
    return session


def load_openvino(options: dict[str, Any]) -> Any:
    """Weights and activations in int8, or float32."""
    config = {"INFERENCE_NUM_THREADS": str(options["threads"])}
    if options["kind"].endswith("float32"):
        config["INFERENCE_PRECISION_HINT"] = "f32"
    model = _opened(options, options["model"], backend="openvino", model_kwargs={"ov_config": config})
    if options["kind"].endswith("int8"):
        import nncf

        inner = model.model if options["scores"] else model[0].model
        texts = [f"{word} of the {word} is a {word}" for word in ("house", "river", "city", "music", "war", "bread")]
        wanted = {name for port in inner.model.inputs for name in port.names}
        read = [dict(model.tokenizer(text, return_tensors="np")) for text in texts]
        samples = [{name: value for name, value in each.items() if name in wanted} for each in read]
        inner.model = nncf.quantize(inner.model, nncf.Dataset(samples), model_type=nncf.ModelType.TRANSFORMER)
        inner.request = None
        inner.compile()
    return model


if __name__ == "__main__":
    main()
