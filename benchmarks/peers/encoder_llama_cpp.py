"""The part of llama.cpp in ../encoder_speed.py: GGUF files, written as its converter writes them."""

from typing import Any

from encoder_work import serve
from llama_cpp import Llama


def main() -> None:
    serve(load)


def load(options: dict[str, Any]) -> Any:
    """As `serve` needs it. Texts come one by one: several in one step take it several times as long."""
    room, threads = options["max_tokens"], options["threads"]
    model = Llama(
        options["files"][options["kind"]],
        embedding=True,
        n_ctx=room,
        n_batch=room,
        n_ubatch=room,
        n_threads=threads,
        n_threads_batch=threads,
        verbose=False,
    )

    def embed(texts: list[str]) -> Any:
        return [model.embed(text, normalize=True) for text in texts]

    return embed, lambda texts: len(model.tokenize(texts[-1].encode(), special=True))


if __name__ == "__main__":
    main()
