"""A GGUF file is served as the checkpoint that it was made from: nothing else is needed."""

import shutil
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind

from penstock import LLM, SamplingParams
from penstock.bundled.registry import find_bundled
from support.gguf_files import write_gguf
from support.live_server import serving

MESSAGES = [{"role": "user", "content": "Write a haiku about rain."}]


def haiku(path: Path, kind: Kind) -> tuple[Path, Path]:
    """The bundled model with matrices of a kind, as a directory and as a file."""
    bundled = find_bundled("haiku")
    assert bundled is not None
    folder = Path(shutil.copytree(bundled.installed(), path / "model"))
    return folder, write_gguf(folder, path / "rain.gguf", kind)


@pytest.mark.parametrize("kind", [Kind.BF16, Kind.Q8_0])
def test_chats_are_answered_alike(tmp_path: Path, kind: Kind) -> None:
    folder, file = haiku(tmp_path, kind)
    params = [SamplingParams(max_tokens=40, temperature=warm, seed=1, logprobs=2) for warm in (0.0, 0.9)]
    dtype = "bfloat16" if kind is Kind.BF16 else "float32"
    answers = []
    for model in (folder, file):
        llm = LLM(str(model), threads=1, max_model_len=256, dtype=dtype, quantization="none")
        answers.append([(each.text, each.token_ids, each.logprobs) for each in llm.chat([MESSAGES] * 2, params)])
    assert answers[0] == answers[1] and len(answers[0][0][0]) > 10


def test_a_file_is_all_that_a_server_needs(tmp_path: Path) -> None:
    _, file = haiku(tmp_path, Kind.BF16)
    # Caches keep files under names that say nothing, and link to them.
    blob = file.rename(tmp_path / "0f3a")
    file.symlink_to(blob)
    with serving(file, "--threads", "1", "--data-dir", "off", log=tmp_path / "log") as server:
        asked = {"messages": MESSAGES, "max_tokens": 30, "temperature": 0}
        answer = server.post("/v1/chat/completions", asked)
    with serving(None, "--threads", "1", "--data-dir", "off", log=tmp_path / "other") as server:
        expected = server.post("/v1/chat/completions", asked)
    assert answer["model"] == "rain" and expected["model"] == "haiku"
    said, wanted = ([choice["message"] for choice in each["choices"]] for each in (answer, expected))
    assert said == wanted and answer["usage"] == expected["usage"]
