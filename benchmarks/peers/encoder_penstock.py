"""Penstock's part of ../encoder_speed.py: lines of texts come in, and the seconds that they took go out."""

from typing import Any

from encoder_work import serve

from penstock import LLM


def main() -> None:
    serve(load)


def load(options: dict[str, Any]) -> Any:
    """As `serve` needs it."""
    kind = options["kind"]
    weights = {"quantization": kind} if kind.startswith("int") else {"dtype": kind}
    llm = LLM(options["model"], threads=options["threads"], max_model_len=options["max_tokens"], **weights)
    tokenizer = llm.tokenizer
    assert tokenizer is not None
    if options["scores"]:
        # The pair has the query's tokens, the document's, and a separator between.
        return lambda texts: llm.score(
            texts[0], texts[1:]
        ), lambda texts: len(tokenizer.encode(texts[0])) + len(tokenizer.encode(texts[-1])) - 1
    return llm.embed, lambda texts: len(tokenizer.encode(texts[-1]))


if __name__ == "__main__":
    main()
