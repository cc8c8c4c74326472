"""Engine options as every command takes them, and sizes as people write them."""

import re
from fractions import Fraction
from typing import Annotated, Any

import typer

from penstock.bundled.tiny import tiny_checkpoint
from penstock.core.errors import ConfigurationError

Model = Annotated[
    str | None,
    typer.Argument(help="A directory in Hugging Face's layout, or a hub name; without one, a tiny random model."),
]
Tokenizer = Annotated[str | None, typer.Option(help="Directory to take the tokenizer from, instead of the model's.")]
Dtype = Annotated[str, typer.Option(help="What the model computes in: auto, bfloat16 or float32.")]
MaxModelLen = Annotated[int | None, typer.Option(help="Most tokens of prompt and output together.")]
MaxNumSeqs = Annotated[int | None, typer.Option(help="Sequences that run at a time.")]
MaxNumBatchedTokens = Annotated[int | None, typer.Option(help="Positions computed in one step.")]
LongPrefill = Annotated[int | None, typer.Option(help="Most prompt tokens of one request in one step.")]
KvCacheMemory = Annotated[str | None, typer.Option(help="Size of the KV pool, such as 4GiB or 500MB.")]
PrefixCaching = Annotated[
    bool, typer.Option("--enable-prefix-caching/--no-enable-prefix-caching", help="Share the KV of equal prefixes.")
]
LoadFormat = Annotated[str, typer.Option(help="auto, or dummy: random weights from config.json alone.")]
Threads = Annotated[int | None, typer.Option(help="Threads of the computation.")]

MAX_DIGITS = 24
_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS |= {f"{_letter}B": 1000**_power, f"{_letter}IB": 1024**_power, _letter: 1024**_power}


def parse_size(text: str | None, option: str) -> int | None:
    """Bytes of a size such as "4GiB", "500 MB" or "1073741824". Raises ConfigurationError."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    if match is not None and len(match[1]) > MAX_DIGITS:
        raise ConfigurationError(f"{option} has a number of {len(match[1])} digits, which no machine's memory needs.")
    if match is None or match[2].upper() not in _UNITS:
        raise ConfigurationError(
            f"{option} {text!r} is not a size; write a number of bytes, or one like 4GiB or 500MB."
        )
    return int(Fraction(match[1]) * _UNITS[match[2].upper()])


def parse_batch_sizes(text: str) -> list[int]:
    """Batch sizes of "1,4,16". Raises ConfigurationError."""
    sizes = [int(part) for part in text.split(",") if re.fullmatch(r"\s*[0-9]{1,9}\s*", part)]
    if len(sizes) != len(text.split(",")) or not all(sizes):
        raise ConfigurationError(f"--batch-size {text!r} is not a list of positive numbers such as 1,4,16.")
    return sizes


def model_or_default(model: str | None) -> str:
    """The model that was asked for, or the tiny random one, which is made on first use and announced."""
    if model is not None:
        return model
    path = tiny_checkpoint()
    typer.echo(
        f"penstock: no model was given, so this is {path}: tiny, with random weights. It answers with noise and shows "
        "that everything works; give a directory or a hub name to serve a real one.",
        err=True,
    )
    return str(path)


def engine_options(
    model: str,
    *,
    tokenizer: str | None,
    dtype: str,
    max_model_len: int | None,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    long_prefill_token_threshold: int | None,
    kv_cache_memory: str | None,
    enable_prefix_caching: bool,
    load_format: str,
    threads: int | None,
) -> dict[str, Any]:
    """Keyword arguments for `EngineOptions` and `LLM`. Raises ConfigurationError where the size is none."""
    return {
        "model": model,
        "tokenizer": tokenizer,
        "dtype": dtype,
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "long_prefill_token_threshold": long_prefill_token_threshold,
        "kv_cache_memory": parse_size(kv_cache_memory, "--kv-cache-memory"),
        "enable_prefix_caching": enable_prefix_caching,
        "load_format": load_format,
        "threads": threads,
    }
