"""The part of llama.cpp in ../encoder_speed.py: GGUF files, written as its converter writes them."""

from typing import Any

from encoder_work import serve
from llama_cpp import Llama


def main() -> None:
    serve(load)


def load(options: dict[str, Any]) -> Any:
    """As `serve` needs it. A batch has all tokens of a call, so that each call is one step."""
    most, threads = options["max_tokens"], options["threads"]
    room = most * options["most_texts"]
    model = Llama(
        options["files"][options["kind"]],
        embedding=True,
        n_ctx=room,
        n_batch=room,
        n_ubatch=room,
        n_seq_max=options["most_texts"],
        n_threads=threads,
        n_threads_batch=threads,
        verbose=False,
    )

    def embed(texts: list[str]) -> Any:
        return model.embed(texts, normalize=True)

    return embed, lambda texts: len(model.tokenize(texts[-1].encode(), special=True))


if __name__ == "__main__":
    main()
