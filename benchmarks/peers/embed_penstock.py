"""Penstock's part of ../embedding_speed.py: lines of texts come in, and the seconds that their vectors took go out."""

from typing import Any

from embed_work import serve

from penstock import LLM


def main() -> None:
    serve(load)


def load(options: dict[str, Any]) -> Any:
    """(texts) → their vectors, and (text) → its number of tokens."""
    kind = options["kind"]
    weights = {"quantization": kind} if kind.startswith("int") else {"dtype": kind}
    llm = LLM(options["model"], threads=options["threads"], max_model_len=options["max_tokens"], **weights)
    assert llm.tokenizer is not None
    encode = llm.tokenizer.encode
    return llm.embed, lambda text: len(encode(text))


if __name__ == "__main__":
    main()
