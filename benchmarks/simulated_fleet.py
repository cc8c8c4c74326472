"""Starts simulated replicas of a large model, and a gateway in front of them, for a benchmark."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from serving import HOST, Server, running

from penstock.bundled.registry import find_bundled

# A dense model of 70 billion parameters, with eight heads of keys and values, as Llama 3 70B describes itself.
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
NAME = "simulated"


@dataclass(frozen=True)
class Replicas:
    """What was started.

    Attributes:
        model: the folder with what all of them serve.
        servers: each a replica.
    """

    model: str
    servers: list[Server]


@contextmanager
def simulated_replicas(
    count: int, options: Sequence[str] = (), hardware: str = "8x h100", *, tokenizer: bool = False
) -> Iterator[Replicas]:
    """Replicas that take as long as the hardware would; prompts are token ids, or texts where there is a tokenizer."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if tokenizer:
            bundled = find_bundled("haiku")
            assert bundled is not None, "it is in the package"
            for file in (*bundled.directory.glob("tokenizer*"), bundled.directory / "chat_template.jinja"):
                shutil.copy(file, folder)
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        started = [
            stack.enter_context(
                running(
                    "serve", folder, "--served-model-name", NAME, "--simulate", hardware, "--data-dir", "off", *options
                )
            )
            for _ in range(count)
        ]
        for each in started:
            each.wait_until_ready()
        yield Replicas(folder, started)


@contextmanager
def gateway(replicas: Sequence[Server], settings: str = "", options: Sequence[str] = ()) -> Iterator[Server]:
    """A gateway in front of them; `settings` are TOML."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        listed = "".join(f'[[replica]]\nurl = "http://{HOST}:{each.port}"\n' for each in replicas)
        file.write(f"{settings}\n{listed}")
        file.flush()
        with running("gateway", "--config", file.name, "--log-level", "warning", *options) as started:
            started.wait_until_ready()
            yield started
