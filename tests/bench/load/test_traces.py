"""Both formats of traces, and what is wrong with a file, by its line."""

from pathlib import Path

import pytest

from penstock.bench.load.traces import TraceRequest, read_trace
from penstock.core.errors import ConfigurationError

SAMPLE = Path(__file__).resolve().parents[3] / "benchmarks" / "sample_trace.csv"
HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_azure_columns(tmp_path: Path) -> None:
    rows = "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
    first, second = read_trace(write(tmp_path, "trace.csv", HEAD + rows))
    assert first == TraceRequest(0.0, 4808, 10)
    assert second.at == pytest.approx(0.052, abs=1e-5)
    assert (second.prompt, second.output) == (3180, 8)


def test_mooncake_fields_are_in_milliseconds(tmp_path: Path) -> None:
    lines = (
        '{"timestamp": 1000, "input_length": 700, "output_length": 5, "hash_ids": [0, 7]}\n\n'
        '{"timestamp": 4500, "input_length": 20, "output_length": 6}\n'
    )
    found = list(read_trace(write(tmp_path, "trace.jsonl", lines)))
    assert found == [TraceRequest(0.0, 700, 5, (0, 7)), TraceRequest(3.5, 20, 6)]


@pytest.mark.parametrize("name", ["trace.csv", "trace.jsonl"])
def test_a_byte_order_mark_is_no_part_of_a_trace(tmp_path: Path, name: str) -> None:
    text = HEAD + "2023-11-16 18:17:03.9799600,48,10\n"
    if name.endswith("jsonl"):
        text = '{"timestamp": 0, "input_length": 48, "output_length": 10}\n'
    assert list(read_trace(write(tmp_path, name, "\ufeff" + text))) == [TraceRequest(0.0, 48, 10)]


def test_the_sample_is_a_trace() -> None:
    found = list(read_trace(SAMPLE))
    assert len(found) == 200
    assert all(request.prompt > 0 and request.output > 0 for request in found)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", HEAD, "has no requests"),
        ("a.csv", "TIMESTAMP,Tokens\n2023-11-16 18:17:03,1\n", "line 1: there is no column ContextTokens"),
        ("a.csv", HEAD + "2023-11-16 18:17:03,1,2\nyesterday,1,2\n", "line 3: it does not have a time"),
        ("a.csv", HEAD + "2023-11-16 18:17:03,1\n", "line 2: it does not have"),
        ("a.csv", HEAD + "2023-11-16 18:17:03,1,2\n2023-11-16 18:17:02,1,2\n", "line 3: its time is before"),
        ("a.csv", HEAD + "2023-11-16 18:17:03,-1,2\n", "line 2: a length is negative"),
        ("a.jsonl", '{"timestamp": 1, "input_length": 2}\n', "line 1: .*output_length"),
        ("a.jsonl", "\nnothing\n", "line 2: "),
        ("a.txt", "", "traces are .csv"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        list(read_trace(write(tmp_path, name, text)))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        list(read_trace(tmp_path / "none.csv"))
