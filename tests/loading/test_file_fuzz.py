"""Model files that are broken in every way: a start gets through all of them with one of its own errors, or succeeds.

What is tried is everything that reads a model's files before its weights are mapped: in time and in memory that the
file's size bounds.
"""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.assembly.prepare import prepare
from penstock.configuration.options import EngineOptions
from penstock.core.errors import TokenizerError
from penstock.core.sampling import SamplingDefaults
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.gguf import read_gguf
from penstock.loading.json_file import read_json
from penstock.loading.safetensors import read_header
from penstock.models.registry import declare
from penstock.text.chat_template import LONGEST_TEMPLATE, ChatTemplate, load_chat_template
from support import checkpoints
from support.file_mutations import bounded, mutated_bytes, mutated_json, nested, safetensors_file
from support.gguf_files import write_gguf

JSON_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")
HEADER = {
    "__metadata__": {"format": "pt"},
    "first": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "second": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    "empty": {"dtype": "I64", "shape": [0, 9], "data_offsets": [32, 32]},
}
SMALL = safetensors_file(json.dumps(HEADER).encode(), bytes(32))
# A parsed value takes several times the bytes of its text, and a declaration has parts for each layer.
MEMORY_PER_BYTE, MEMORY = 64, 16 << 20
SECONDS = 20.0


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make(request.param, tmp_path_factory.mktemp(request.param), hidden_size=8, intermediate_size=8)


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model"))


def start(folder: Path, load_format: str = "auto") -> None:
    """What `penstock serve` reads before it has an engine made."""
    prepared = prepare(EngineOptions.of(model=str(folder), threads=1, load_format=load_format), api_beside=True)
    tokenizer = prepared.load_tokenizer()
    prepared.model_info(tokenizer)
    SamplingDefaults.from_generation_config(prepared.checkpoint.generation_config)
    if tokenizer is not None:
        load_chat_template(tokenizer)


def attempt(what: Callable[[], object], size: int, label: str) -> bool:
    """Whether it succeeds, in the time and with the memory that starts may take."""
    return bounded(what, MEMORY + MEMORY_PER_BYTE * size, SECONDS, f"{label}, of {size} bytes")


def test_a_safetensors_file_cut_at_every_byte(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    for length in range(len(SMALL)):
        file.write_bytes(SMALL[:length])
        assert not attempt(lambda: read_header(file), length, f"the first {length} bytes")
    file.write_bytes(SMALL)
    assert set(read_header(file)) == {"first", "second", "empty"}


def test_safetensors_files_with_wrong_headers(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    file = tmp_path / "model.safetensors"
    sound = 0
    count = pytestconfig.getoption("files")
    for seed in range(count):
        rng = random.Random(seed)
        content = (
            mutated_bytes(rng, SMALL)
            if rng.random() < 0.3
            else safetensors_file(mutated_json(rng, HEADER), SMALL[-32:])
        )
        file.write_bytes(content)

        def tensors_lie_in_the_file(size: int = len(content)) -> None:
            for entry in read_header(file).values():
                assert 8 <= entry.offset <= entry.offset + entry.nbytes <= size

        sound += attempt(tensors_lie_in_the_file, len(content), f"seed {seed}")
    assert 0 < sound < count / 2


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_a_json_file_cut_at_every_byte(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    for length in range(len(content)):
        (folder / name).write_bytes(content[:length])
        # The last byte may be a line break.
        assert not attempt(lambda: read_json(folder / name), length, f"the first {length} bytes of {name}") or (
            content[length:].isspace()
        )
    for length in range(0, len(content), 37):
        (folder / name).write_bytes(content[:length])
        assert not attempt(lambda: start(folder), length, f"the first {length} bytes of {name}")


def test_json_files_with_wrong_values(folder: Path, pytestconfig: pytest.Config) -> None:
    contents = {name: (folder / name).read_bytes() for name in JSON_FILES}
    sound = 0
    count = pytestconfig.getoption("files")
    for seed in range(count):
        rng = random.Random(seed)
        name = rng.choice(JSON_FILES)
        whole = contents[name]
        changed = mutated_bytes(rng, whole) if rng.random() < 0.2 else mutated_json(rng, json.loads(whole))
        (folder / name).write_bytes(changed)
        load_format = rng.choice(["auto", "dummy"])
        sound += attempt(lambda how=load_format: start(folder, how), len(changed), f"seed {seed}, {name}")
        (folder / name).write_bytes(whole)
    assert 0 < sound < count


@pytest.mark.parametrize("key", ["unknown", "hidden_size", "rope_parameters", "layer_types", "eos_token_id"])
def test_nesting_of_every_depth(folder: Path, key: str, pytestconfig: pytest.Config) -> None:
    """Between what can be parsed and what can be shown lies what breaks a start, if anything does."""
    config = {name: value for name, value in read_json(folder / "config.json").items() if name != key}
    step = 3 if pytestconfig.getoption("files") > 100 else 10
    for kind in ("list", "object"):
        for depth in [*range(880, 1000, step), 100_000]:
            text = json.dumps(config)[:-1] + f', "{key}": {nested(depth, kind)}' + "}"
            (folder / "config.json").write_text(text)

            def declared() -> None:
                declare(open_checkpoint(folder, weights=False).config)

            attempt(declared, len(text), f"{kind} {depth}")


@pytest.mark.parametrize("shard", ["x" * 5000, "\ud800", "a\0b", "", ".", "..", "/etc/passwd", "../model.safetensors"])
def test_shards_of_no_file(folder: Path, shard: str) -> None:
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": shard}}))
    assert not attempt(lambda: start(folder), index.stat().st_size, shard[:20])


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "1" * 5000 + " }}",
        "{% for a in b %}" * 25 + "{% endfor %}" * 25,
        "{% if a %}" * 200 + "{% endif %}" * 200,
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{{ " + "-" * 5000 + "1 }}",
        "{{ a" + ".b" * 5000 + " }}",
        "{{ 9**9**9**9 }}",
        "{{ 'a' * 10**11 }}",
        "{{ 'x'|center(10**11) }}",
        "{% macro a(b, b) %}{% endmacro %}",
        "{{ f(a=1, a=2) }}",
        "{% break %}",
        "{% include 'x' %}",
        "\ud800",
        "{{",
        "{%",
    ],
    ids=lambda source: source[:24],
)
def test_templates_that_cannot_be_compiled(source: str) -> None:
    attempt(lambda: ChatTemplate(source), len(source), source[:40])


def test_a_template_may_be_so_long() -> None:
    ChatTemplate("x" * LONGEST_TEMPLATE)
    with pytest.raises(TokenizerError, match=f"{LONGEST_TEMPLATE + 1} characters"):
        ChatTemplate("x" * (LONGEST_TEMPLATE + 1))


def test_a_token_of_any_id_is_no_reason_for_a_table_of_that_size(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["the"] = 2**32 - 1
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert not attempt(lambda: start(folder), 20_000, "a high id")


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_gguf_files_with_wrong_bytes(tmp_path: Path, family: str, pytestconfig: pytest.Config) -> None:
    model = checkpoints.make(family, tmp_path / "model", num_hidden_layers=1, hidden_size=8, intermediate_size=8)
    settings = json.loads((model / "config.json").read_text())
    settings["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    if family == "gemma3":
        settings["rope_parameters"] = dict.fromkeys(
            ("full_attention", "sliding_attention"), settings["rope_parameters"]
        )
    (model / "config.json").write_text(json.dumps(settings))
    file = write_gguf(model, tmp_path / "a.gguf")
    content = file.read_bytes()
    assert attempt(lambda: start(file), len(content), "as it is")
    # All before the tensors, most of which is the tokenizer's.
    beginning = min(entry.offset for entry in read_gguf(file).tensors.values())
    sound, count = 0, max(20, pytestconfig.getoption("files") // 10)
    for seed in range(count):
        rng = random.Random(seed)
        mutated = bytearray(content)
        for _ in range(rng.randint(1, 6)):
            mutated[rng.randrange(beginning)] = rng.choice([0, 1, 7, 8, 9, 255, rng.randrange(256)])
        file.write_bytes(mutated)
        sound += attempt(lambda: start(file), len(content), f"seed {seed}")
    assert sound < count
