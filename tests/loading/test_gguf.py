"""What is read of GGUF files, and what is refused."""

import random
from pathlib import Path

import gguf
import numpy as np
import pytest

from penstock.core.errors import ModelFileError, StartupError, UnsupportedModel
from penstock.loading.gguf import is_packed, read_gguf
from support.file_mutations import bounded, mutated_bytes
from support.gguf_files import finish

MEMORY_PER_BYTE, MEMORY, SECONDS = 4, 16 << 20, 1.0


def small(file: Path, **texts: str) -> Path:
    """A file with a value of every type and tensors of some."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_uint8("of.8", 200)
    writer.add_int64("of.64", -5)
    writer.add_float32("of.float", 0.5)
    writer.add_bool("of.truth", True)
    writer.add_array("of.numbers", [1, 2, 3])
    writer.add_array("of.texts", ["a", "", "日本"])
    for name, text in texts.items():
        writer.add_string(name, text)
    writer.add_tensor("vector", np.arange(3, dtype=np.float32))
    blocks = np.zeros((2, 2 * 34), dtype=np.uint8)
    writer.add_tensor("matrix", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    finish(writer)
    return file


def test_values_and_tensors_are_those_that_were_written(tmp_path: Path) -> None:
    found = read_gguf(small(tmp_path / "a.gguf", name="x"))
    values = found.metadata
    assert (values["of.8"], values["of.64"], values["of.float"], values["of.truth"]) == (200, -5, 0.5, True)
    assert list(values["of.numbers"]) == [1, 2, 3] and list(values["of.texts"]) == ["a", "", "日本"]
    assert values["of.texts"][-1] == "日本" and values["of.texts"][:2] == ["a", ""]
    assert values["general.architecture"] == "llama" and values["name"] == "x"
    vector, matrix = found.tensors["vector"], found.tensors["matrix"]
    assert (vector.dtype, vector.shape, vector.nbytes) == ("float32", (3,), 12) and not is_packed(vector)
    assert (matrix.dtype, matrix.shape, matrix.nbytes) == ("Q8_0", (2, 64), 136) and is_packed(matrix)
    content = (tmp_path / "a.gguf").read_bytes()
    assert content[vector.offset : vector.offset + 12] == np.arange(3, dtype=np.float32).tobytes()


def attempt(file: Path, size: int, label: str) -> bool:
    """Whether it can be read, in a time and with the memory that its size bounds; who cannot be says which it is."""

    def read() -> None:
        try:
            entries = read_gguf(file).tensors.values()
        except StartupError as error:
            assert file.name in error.message and "Traceback" not in error.message
            raise
        for entry in entries:
            assert 0 <= entry.offset <= entry.offset + entry.nbytes <= size, label

    return bounded(read, MEMORY + MEMORY_PER_BYTE * size, SECONDS, label)


def test_a_file_cut_at_every_byte(tmp_path: Path) -> None:
    whole = small(tmp_path / "a.gguf").read_bytes()
    end = max(entry.offset + entry.nbytes for entry in read_gguf(tmp_path / "a.gguf").tensors.values())
    for length in range(len(whole)):
        (tmp_path / "b.gguf").write_bytes(whole[:length])
        assert attempt(tmp_path / "b.gguf", length, f"the first {length} bytes") == (length >= end)


def test_files_with_wrong_bytes(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    whole = small(tmp_path / "a.gguf").read_bytes()
    sound, count = 0, pytestconfig.getoption("files")
    for seed in range(count):
        content = mutated_bytes(random.Random(seed), whole)
        (tmp_path / "b.gguf").write_bytes(content)
        sound += attempt(tmp_path / "b.gguf", len(content), f"seed {seed}")
    assert 0 < sound < count


def number(value: int, size: int = 8) -> bytes:
    return value.to_bytes(size, "little")


HEAD = b"GGUF" + number(3, 4)
NAMED = number(1) + b"a"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"PK\x03\x04" + bytes(40), "GGUF"),
        (b"GGUF" + number(9, 4) + bytes(40), "version 9"),
        (b"GGUF" + (3).to_bytes(4, "big") + bytes(40), "big-endian"),
        (HEAD + number(2**60) + number(0) + bytes(40), "too short"),
        (HEAD + number(0) + number(2**64 - 1) + bytes(40), "too short"),
        (HEAD + number(0) + number(1) + number(2**63) + bytes(40), "text of"),
        (HEAD + number(0) + number(1) + NAMED + number(77, 4) + bytes(8), "type 77"),
        (HEAD + number(0) + number(1) + NAMED + number(9, 4) + number(4, 4) + number(2**62) + bytes(8), "too short"),
        (HEAD + number(0) + number(1) + NAMED + number(9, 4) + number(8, 4) + number(2**62) + bytes(8), "too short"),
        (HEAD + number(0) + number(1) + NAMED + number(9, 4) + number(9, 4) + number(1) + bytes(30), "type 9"),
        (HEAD + number(0) + number(2) + (NAMED + number(0, 4) + b"x") * 2, "twice"),
        (HEAD + number(1) + number(0) + NAMED + number(9, 4) + bytes(90), "9 dimensions"),
        (HEAD + number(1) + number(0) + NAMED + number(1, 4) + number(0) + bytes(90), "shape"),
        (HEAD + number(1) + number(0) + NAMED + number(2, 4) + number(2**40) * 2 + bytes(12), "shape|ends at"),
        (HEAD + number(1) + number(0) + NAMED + number(1, 4) + number(33) + number(2, 4) + number(0), "whole Q4_0"),
        (HEAD + number(1) + number(0) + NAMED + number(1, 4) + number(32) + number(2, 4) + number(7), "multiple of 32"),
        (HEAD + number(1) + number(0) + NAMED + number(1, 4) + number(32) + number(2, 4) + number(32), "ends at"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises((ModelFileError, UnsupportedModel), match=says):
        read_gguf(tmp_path / "a.gguf")


def test_texts_that_are_none_are_refused_where_they_are_read(tmp_path: Path) -> None:
    texts = NAMED + number(9, 4) + number(8, 4) + number(2) + number(1) + b"x" + number(1) + b"\xff"
    (tmp_path / "a.gguf").write_bytes(HEAD + number(0) + number(1) + texts)
    found = read_gguf(tmp_path / "a.gguf").metadata["a"]
    assert found[0] == "x"
    with pytest.raises(ModelFileError, match="UTF-8"):
        list(found)


def test_a_type_that_is_not_known_is_named(tmp_path: Path) -> None:
    content = HEAD + number(1) + number(0) + NAMED + number(1, 4) + number(256) + number(16, 4) + number(0)
    (tmp_path / "a.gguf").write_bytes(content + bytes(99))
    (entry,) = read_gguf(tmp_path / "a.gguf").tensors.values()
    assert entry.dtype == "GGUF type IQ2_XXS" and not is_packed(entry)
