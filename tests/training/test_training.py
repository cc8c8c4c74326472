"""The recipe in small: rows keep what they pack, interrupted runs end as whole ones, exports are what was trained."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.bundled.corpus.checks import count_word, words_of
from penstock.bundled.corpus.generator import training
from training import export, loop
from training.data import Corpus, Packer, load_corpus, make_corpus_of, save_corpus, without_hints
from training.hints import TOPIC_STRIDE, running_syllables, topic_tokens
from training.mixture import BalancedLesson
from training.model import Decoder, ModelShape, document_lengths
from training.recipe import Phase, Recipe
from training.train import Lesson


@pytest.fixture
def recipe(tokenizer) -> Recipe:
    shape = ModelShape(
        vocabulary=tokenizer.get_vocab_size(), layers=2, width=32, heads=2, kv_heads=1, intermediate=64, context=256
    )
    phases = (Phase(positions=64, rows=4, share=0.5), Phase(positions=256, rows=1, share=0.5, short=64))
    return Recipe(
        "small",
        shape,
        tokens=256 * 12,
        phases=phases,
        matrix_rate=0.02,
        embedding_rate=3e-3,
        warmup_steps=2,
        hint_weight=0.5,
    )


def make_run(recipe: Recipe, corpus: Corpus) -> loop.Run:
    torch.manual_seed(0)
    lesson = Lesson(Decoder(recipe.shape), recipe.hint_weight)
    if recipe.shape.experts:
        lesson = BalancedLesson(lesson, recipe.balance_weight, corpus.pad)
    return loop.Run(recipe, lesson, lesson, corpus, torch.device("cpu"))


def test_the_tokenizer_gives_back_every_text(tokenizer) -> None:
    text = 'A haiku, 42 snow-men?\n<tool_call>{"é": 1}</tool_call> \U0001f642'
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.encode("rain").ids[0] == tokenizer.token_to_id("<|begin|>")
    assert len(tokenizer.encode("1234", add_special_tokens=False).ids) == 4


def test_only_the_models_turns_are_learned(tokenizer, corpus: Corpus) -> None:
    first = slice(int(corpus.starts[3]), int(corpus.starts[4]))
    ids = corpus.tokens[first][corpus.learned[first]]
    said = [message for message in training(5, 3).messages if message["role"] == "assistant"]
    expected = "".join(f"{message['content']}<|end|>" for message in said if "tool_calls" not in message)
    assert tokenizer.decode(ids.tolist(), skip_special_tokens=False) == expected


def test_rows_hold_whole_conversations_each_once_an_epoch(tokenizer, corpus: Corpus) -> None:
    pad = corpus.pad
    packer = Packer(corpus, 128, seed=1)
    fitting = int(packer.lengths[packer.fitting].sum())
    seen = 0
    rows = []
    for row in packer.rows():
        tokens = row.tokens
        assert all(part.shape == (129,) for part in row)
        for part in (row.learned, row.syllables, row.topics):
            assert not part[tokens == pad].any()
        rows.append(tokens[tokens != pad])
        seen += int((tokens != pad).sum())
        if seen >= fitting:
            break
    assert seen == fitting
    begin = tokenizer.token_to_id("<|begin|>")
    assert all(row[0] == begin for row in rows)
    packed = sorted(tuple(part) for row in rows for part in np.split(row, np.flatnonzero(row == begin)) if len(part))
    whole = sorted(
        tuple(corpus.tokens[corpus.starts[index] : corpus.starts[index] + corpus.lengths()[index]])
        for index in packer.fitting
    )
    assert packed == whole


def test_the_long_phase_is_half_long_conversations(tokenizer) -> None:
    conversations = [without_hints([1] * length, np.ones(length, dtype=np.bool_)) for length in [20] * 500 + [150] * 20]
    packer = Packer(make_corpus_of(tokenizer, conversations), 256, seed=1, short=64)
    lengths = packer.lengths[packer.fitting]
    assert lengths[lengths > 64].sum() == 3000
    assert 2980 <= lengths[lengths <= 64].sum() <= 3020


def test_each_word_says_how_far_its_line_has_come(tokenizer) -> None:
    poem = 'a slow sunbeam stays", "the pine'
    text = f"<|user|>two suns<|end|><|assistant|>{poem}\nqqzx and then<|end|>"
    encoding = tokenizer.encode(text, add_special_tokens=False)
    counts = running_syllables(text, encoding.offsets)
    ends = [end for _, end in encoding.offsets]
    by_word = {words_of(text[:end])[-1]: int(count) for end, count in zip(ends, counts, strict=True) if count}
    # A quotation mark and the end of a line begin anew; behind an unknown word nothing is counted.
    assert by_word == {"two": 1, "suns": 2, "a": 1, "slow": 2, "sunbeam": 4, "stays": 5, "the": 1, "pine": 2}


def test_a_turn_is_told_its_topic_now_and_then(tokenizer) -> None:
    learned = np.array([False] * 4 + [True] * 20 + [False] * 3 + [True] * 5)
    ids = tokenizer.encode(" stormy sea", add_special_tokens=False).ids
    hints = topic_tokens(tokenizer, learned, ["stormy sea", None])
    told = np.flatnonzero(hints)
    assert told.tolist() == list(range(4, 24, TOPIC_STRIDE))
    assert hints[told].tolist() == (ids * 20)[: len(told)]


def test_the_hints_of_a_corpus_are_of_its_own_turns(tokenizer, corpus: Corpus) -> None:
    assert not corpus.topics[~corpus.learned].any()
    assert len(corpus.syllables) == len(corpus.topics) == len(corpus.tokens)
    index = next(index for index in range(len(corpus.starts)) if training(5, index).tasks == ("haiku",))
    place = slice(int(corpus.starts[index]), int(corpus.starts[index + 1]))
    said = corpus.syllables[place][corpus.learned[place]]
    lines = training(5, index).messages[-1]["content"].splitlines()
    counts = [itertools.accumulate(count_word(word) for word in words_of(line)) for line in lines]
    assert said[said > 0].tolist() == list(itertools.chain(*counts))


def test_a_corpus_is_saved_whole(tmp_path: Path, corpus: Corpus) -> None:
    save_corpus(corpus, tmp_path / "corpus.safetensors")
    again = load_corpus(tmp_path / "corpus.safetensors")
    for name, value in vars(corpus).items():
        np.testing.assert_array_equal(getattr(again, name), value)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.safetensors"]


def test_a_conversation_sees_nothing_of_those_before_it_in_its_row(recipe: Recipe) -> None:
    torch.manual_seed(1)
    model = Decoder(recipe.shape)
    begin = 0
    first, second = (torch.cat((torch.tensor([begin]), torch.randint(1, 99, (length,)))) for length in (20, 30))
    row = torch.cat((first, second))[None]
    together = model.hidden(row, document_lengths(row, begin))[0]
    assert document_lengths(torch.cat((row, row)), begin) == [len(first), len(second)] * 2
    torch.testing.assert_close(together[: len(first)], model.hidden(first[None])[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(together[len(first) :], model.hidden(second[None])[0], rtol=1e-4, atol=1e-5)


def test_the_rate_rises_stays_and_falls_to_zero(recipe: Recipe) -> None:
    scales = [loop.rate_scale(step, 100, recipe) for step in range(101)]
    assert scales[0] == 0.5 and scales[1:26] == [1.0] * 25 and scales[100] == 0
    assert all(after < before for before, after in itertools.pairwise(scales[25:]))


@pytest.mark.parametrize("experts", [0, 4])
def test_an_interrupted_run_ends_like_an_uninterrupted_one(
    experts: int, tmp_path: Path, tokenizer, corpus: Corpus, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = dataclasses.replace(recipe.shape, experts=experts, chosen=experts // 2)
    recipe = dataclasses.replace(recipe, shape=shape, balance_weight=0.01)
    monkeypatch.setattr(loop, "WORK", tmp_path / "whole")
    whole = make_run(recipe, corpus)
    whole.train()

    monkeypatch.setattr(loop, "WORK", tmp_path / "interrupted")
    interrupted = make_run(recipe, corpus)
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0)
    steps = iter(range(8))
    step = interrupted.train_step

    def fail_after_eight(batch: loop.Batch) -> float:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return step(batch)

    monkeypatch.setattr(interrupted, "train_step", fail_after_eight)
    with pytest.raises(KeyboardInterrupt):
        interrupted.train()
    resumed = make_run(recipe, corpus)
    resumed.resume()
    assert resumed.step == 8
    resumed.train()

    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    assert whole.log_file.read_text() != ""
    assert (whole.directory / "run.json").exists()


def test_a_state_of_another_recipe_is_refused(
    tmp_path: Path, tokenizer, corpus: Corpus, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "WORK", tmp_path)
    make_run(recipe, corpus).save()
    make_run(recipe, corpus).resume()
    other = dataclasses.replace(recipe, matrix_rate=0.5)
    with pytest.raises(SystemExit, match="another recipe"):
        make_run(other, corpus).resume()
    changed = dataclasses.replace(corpus, learned=~corpus.learned)
    with pytest.raises(SystemExit, match="another text"):
        make_run(recipe, changed).resume()


def test_transformers_and_penstock_read_the_export_alike(
    work: Path, tokenizer, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(export, "WORK", work)
    torch.manual_seed(3)
    model = Decoder(recipe.shape)
    directory = work / "export"
    export.export_model(model, recipe, directory)
    mine = export.load_model(directory, recipe.shape)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    ids = torch.randint(0, recipe.shape.vocabulary, (1, 200))
    with torch.inference_mode():
        torch.testing.assert_close(mine.logits(mine.hidden(ids)), theirs(ids).logits, rtol=1e-4, atol=1e-4)
