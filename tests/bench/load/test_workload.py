"""What is asked: lengths, shared content, and the same again for the same seed."""

import codecs
import itertools
from pathlib import Path

import pytest

from penstock.bench.load.content import WORDS, TokenIds, Words
from penstock.bench.load.dataset import Row, read_dataset
from penstock.bench.load.lengths import Lengths
from penstock.bench.load.traces import TraceRequest
from penstock.bench.load.workload import (
    Block,
    Conversation,
    Shape,
    Turn,
    dataset_conversations,
    random_conversations,
    trace_conversations,
    with_cancellations,
)
from penstock.core.errors import ConfigurationError

IDS = TokenIds(100, 1000)
TEN = Lengths("fixed", 10)


def ids(turn: Turn) -> list[int]:
    blocks = [block for block in turn.prompt if isinstance(block, Block)]
    return IDS.render(blocks)


def turns(shape: Shape, count: int, seed: int = 0) -> list[Turn]:
    return [conversation.turns[0] for conversation in itertools.islice(random_conversations(shape, seed), count)]


def test_prompts_have_their_length_and_are_different() -> None:
    prompts = [ids(turn) for turn in turns(Shape(TEN, TEN), 50)]
    assert all(len(prompt) == 10 and all(100 <= token < 1000 for token in prompt) for prompt in prompts)
    assert len({tuple(prompt) for prompt in prompts}) == 50


def test_a_seed_has_its_prompts() -> None:
    shape = Shape(Lengths("uniform", 5, 50), TEN, prefix=8, prefixes=3)
    assert turns(shape, 30, seed=2) == turns(shape, 30, seed=2)
    first, other = ids(turns(shape, 1, seed=2)[0]), ids(turns(shape, 1, seed=3)[0])
    assert first[:5] != other[:5]


def test_prefixes_are_shared() -> None:
    prompts = [ids(turn) for turn in turns(Shape(TEN, TEN, prefix=16, prefixes=3), 60)]
    assert len({tuple(prompt[:16]) for prompt in prompts}) == 3
    assert len({tuple(prompt[16:]) for prompt in prompts}) == 60


def test_equal_hash_ids_are_equal_tokens() -> None:
    requests = [
        TraceRequest(0.0, 1300, 5, (0, 1, 2)),
        TraceRequest(0.5, 1100, 5, (0, 1, 9)),
        TraceRequest(1.0, 1536, 5, (0, 4, 2)),
    ]
    first, second, third = (ids(item.turns[0]) for item in trace_conversations(requests, 1.0, seed=0))
    assert [len(first), len(second), len(third)] == [1300, 1100, 1536]
    assert first[:1024] == second[:1024]
    assert first[:512] == third[:512]
    # A block that is cut is the beginning of the same block.
    assert first[1024:] == third[1024 : 1024 + 276]
    assert first[1024:1100] != second[1024:]
    assert first[512:1024] != third[512:1024]


def test_scaled_traces_share_as_much() -> None:
    requests = [TraceRequest(2.0, 2048, 100, (0, 1, 2, 3)), TraceRequest(3.0, 2048, 2, (0, 1, 5, 6))]
    scaled = list(trace_conversations(requests, 0.1, seed=0))
    first, second = (ids(item.turns[0]) for item in scaled)
    assert len(first) == 205
    assert first[:102] == second[:102]
    assert first[102:153] != second[102:153]
    assert [item.turns[0].output for item in scaled] == [10, 1]
    assert [item.at for item in scaled] == [2.0, 3.0]


def test_traces_without_identities_share_nothing() -> None:
    first, second = trace_conversations([TraceRequest(0.0, 64, 5), TraceRequest(0.0, 64, 5)], 1.0, seed=0)
    assert ids(first.turns[0])[:8] != ids(second.turns[0])[:8]


def test_words_are_about_as_many_as_tokens() -> None:
    blocks = (Block((0, 1), 60), Block((0, 2), 40))
    assert len(Words(1.0).render(blocks).split()) == 100
    assert len(Words(2.0).render(blocks).split()) == 50
    assert Words(1.0).render(blocks).startswith(Words(1.0).render(blocks[:1]))
    assert len(set(WORDS)) == len(WORDS)


def test_a_share_of_the_requests_is_left_before_its_end() -> None:
    plain = [Conversation((Turn((Block((0, n), 4),), 50),)) for n in range(4000)]
    left = [item.turns[0].cancel_after for item in with_cancellations(plain, 0.25, seed=0)]
    chosen = [after for after in left if after is not None]
    assert len(chosen) == pytest.approx(1000, rel=0.1)
    assert min(chosen) == 1
    assert max(chosen) == 49
    assert left == [item.turns[0].cancel_after for item in with_cancellations(plain, 0.25, seed=0)]


def test_rows_of_a_dataset(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"prompt": "hello", "output_length": 7, "source": "x"}\n\n{"prompt": [1, 2]}\n')
    first, second = dataset_conversations(read_dataset(path, chat=False), TEN, seed=0)
    assert first.turns == (Turn("hello", 7),)
    assert second.turns == (Turn((1, 2), 10),)
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert [row.prompt for row in read_dataset(path, chat=False)] == ["hello", (1, 2)]


@pytest.mark.parametrize(
    ("line", "chat", "says"),
    [
        ("{}", False, 'needs either "prompt" or "messages"'),
        ('{"prompt": "a", "messages": []}', True, "needs either"),
        ('{"messages": [{"role": "user", "content": "a"}]}', False, "add --endpoint chat"),
        ('{"prompt": [1]}', True, "token ids"),
        ('{"prompt": "a", "output_length": 0}', False, "1 or more"),
        ('{"prompt": 5}', False, "line 2: "),
        ("half", False, "line 2: "),
    ],
)
def test_rows_that_cannot_be_asked(tmp_path: Path, line: str, chat: bool, says: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(ConfigurationError, match=says):
        list(read_dataset(path, chat))


def test_an_empty_dataset(tmp_path: Path) -> None:
    (tmp_path / "set.jsonl").write_text("\n")
    with pytest.raises(ConfigurationError, match="has no prompts"):
        list(read_dataset(tmp_path / "set.jsonl", chat=False))
    assert Row(prompt="a").messages is None
