"""An encoder–decoder from a checkpoint to texts, in Python and over HTTP."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
import torch
import transformers

from penstock import LLM, BeamSearchParams, SamplingParams
from penstock.assembly.results import Completion
from penstock.core.beam_search import EarlyStopping
from penstock.core.errors import ContextLengthExceeded, InvalidParameter, StartupError
from penstock.kernels.cpu.native import OBSTACLE
from support.live_server import RunningServer, serving
from support.translator import END, ENGLISH, FRENCH, GERMAN, WORDS, translated, write_translator

LENGTHS = (1, 5, 14, 15, 40, 100, 62)
GREEDY = SamplingParams(temperature=0.0, max_tokens=64, logprobs=2)
Options = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_translator(tmp_path_factory.mktemp("models") / "tiny-mbart")


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(str(folder), dtype="float32", max_num_seqs=8)


def sources() -> list[list[int]]:
    return [
        [ENGLISH, *(4 + (7 * place * place + 3 * length) % len(WORDS) for place in range(length)), END]
        for length in LENGTHS
    ]


def prompts(given: Sequence[list[int]]) -> list[dict[str, list[int]]]:
    return [{"prompt_token_ids": ids} for ids in given]


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[Completion]:
    """What each source comes to when there is nothing else."""
    return [llm.generate(prompt, GREEDY)[0] for prompt in prompts(sources())]


@pytest.mark.parametrize("language", [GERMAN, FRENCH])
def test_outputs_equal_transformers(folder: Path, llm: LLM, language: int) -> None:
    made = llm.generate(prompts(sources()), GREEDY, forced_bos_token=language)
    lengths = set()
    for source, completion in zip(sources(), made, strict=True):
        [expected] = translated(folder, source, language, 64)
        assert completion.token_ids == expected
        assert completion.prompt_token_ids == source
        lengths.add((len(expected), completion.finish_reason))
    assert (64, "length") in lengths and len({tuple(each.token_ids) for each in made}) == len(made)


@pytest.mark.parametrize(
    ("length_penalty", "early_stopping"), [(1.0, False), (2.0, True), (0.0, "never"), (2.0, "never"), (-1.0, False)]
)
def test_beams_equal_transformers(folder: Path, llm: LLM, length_penalty: float, early_stopping: EarlyStopping) -> None:
    """The token that an output is forced to begin with counts for its length there."""
    params = BeamSearchParams(beam_width=4, max_tokens=24, length_penalty=length_penalty, early_stopping=early_stopping)
    found = llm.beam_search(prompts(sources()), params, forced_bos_token=FRENCH)
    options = {"length_penalty": length_penalty, "early_stopping": early_stopping}
    for source, completion in zip(sources(), found, strict=True):
        expected = translated(folder, source, FRENCH, 24, num_beams=4, num_return_sequences=4, **options)
        assert [sample.token_ids for sample in completion.samples] == expected


@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_seqs": 2},
        {"kv_cache_memory": 320 << 10, "max_num_seqs": 16},
        {"long_prefill_token_threshold": 1, "enable_prefix_caching": False},
        {"max_num_batched_tokens": 128, "max_num_seqs": 8},
    ],
)
def test_a_source_alone_has_the_same_bits(folder: Path, alone: list[Completion], options: Options) -> None:
    """Whatever is beside it, however few blocks there are, whoever has the same source."""
    llm = LLM(str(folder), dtype="float32", **options)
    many = llm.generate(prompts([source for source in sources() for _ in range(4)]), GREEDY)
    for place, completion in enumerate(many):
        assert completion.token_ids == alone[place // 4].token_ids
        assert completion.logprobs == alone[place // 4].logprobs
    assert (llm.load.preemptions > 0) == ("kv_cache_memory" in options)
    shared = sum(completion.cached_tokens == len(completion.prompt_token_ids) for completion in many)
    assert shared == 0 if "enable_prefix_caching" in options else shared >= len(many) // 2


@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
@pytest.mark.parametrize(
    "options", [{"dtype": "bfloat16"}, {"quantization": "int8"}, {"quantization": "int4"}, {"kv_cache_dtype": "int8"}]
)
def test_fewer_bits_are_the_same_bits_in_any_batch(folder: Path, options: Options) -> None:
    llm, other = (LLM(str(folder), enable_prefix_caching=caching, **options) for caching in (True, False))
    alone = [llm.generate(prompt, GREEDY)[0] for prompt in prompts(sources())]
    together = other.generate(prompts(sources()), GREEDY)
    assert [each.logprobs for each in together] == [each.logprobs for each in alone]


def test_samples_are_those_of_the_requests_with_their_seeds(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=5, n=3, max_tokens=20)
    [several] = llm.generate(prompts(sources()[4:5]), params)
    [again] = llm.generate(prompts(sources()[4:5]), params)
    assert several.samples == again.samples and len({tuple(each.token_ids) for each in several.samples}) == 3
    assert llm.generate(prompts(sources()[4:5]), SamplingParams(temperature=1.0, seed=5, max_tokens=20))[
        0
    ].token_ids == list(several.samples[0].token_ids)


def test_texts_and_languages(folder: Path, llm: LLM) -> None:
    text = " ".join(WORDS[:9])
    by_name = llm.generate(text, GREEDY, forced_bos_token="fr_XX")[0]
    assert by_name.prompt_token_ids == [ENGLISH, *range(4, 13), END]
    assert by_name.token_ids == llm.generate(text, GREEDY, forced_bos_token=FRENCH)[0].token_ids
    assert (
        by_name.token_ids
        != llm.generate(text, GREEDY)[0].token_ids
        == llm.generate(text, GREEDY, forced_bos_token="de_DE")[0].token_ids
    )
    assert set(by_name.text.split()) <= set(WORDS) and len(by_name.text.split()) > 30


def test_what_is_not_recommended_otherwise_is_greedy(llm: LLM) -> None:
    """A translation is no place for chance."""
    [silent], [greedy] = llm.generate("word1 word2"), llm.generate("word1 word2", GREEDY)
    assert len(silent.token_ids) == 126 and silent.token_ids[:64] == greedy.token_ids


def test_tokens_that_the_files_forbid(tmp_path: Path) -> None:
    """Marian's models would end texts with padding."""
    [first] = LLM(str(write_translator(tmp_path / "plain"))).generate("word1 word2", GREEDY)
    common = max(set(first.token_ids), key=first.token_ids.count)
    folder = write_translator(tmp_path / "forbidding", bad_words_ids=[[common]])
    [other] = LLM(str(folder), dtype="float32").generate("word1 word2", GREEDY)
    assert common not in other.token_ids
    assert other.token_ids == translated(folder, other.prompt_token_ids, GERMAN, 64)[0]


def test_what_such_a_model_cannot_do(folder: Path, llm: LLM) -> None:
    for asking, message in (
        (lambda: llm.chat([{"role": "user", "content": "word1"}]), "takes no conversation"),
        (lambda: llm.embed("word1"), "makes no vectors"),
        (lambda: llm.generate("word1", SamplingParams(prompt_logprobs=1)), "gives no probabilities"),
        (lambda: llm.generate("word1", forced_bos_token="es_XX"), "'es_XX' is no token"),
        (lambda: llm.generate("word1", forced_bos_token=900), "outside this model's vocabulary"),
        (lambda: llm.generate("word1", kv_policy="full") and llm.generate([[]]), "at least one"),
    ):
        with pytest.raises(InvalidParameter, match=message):
            asking()
    with pytest.raises(ContextLengthExceeded, match="129 tokens, and this model's encoder reads at most 128"):
        llm.generate([[ENGLISH] * 129])
    for options, message in (
        ({"kv_disk": "/nowhere"}, "--kv-disk is not possible with an encoder–decoder"),
        ({"kv_policy": "h2o:64"}, "--kv-policy is not possible"),
        ({"speculative": "ngram"}, "--speculative is not possible"),
        ({"max_num_batched_tokens": 100, "max_num_seqs": 4}, "less than a text of 128 tokens"),
        ({"max_model_len": 129}, "beyond the 128 positions"),
        ({"kv_cache_memory": 60 << 10}, "one sequence of"),
    ):
        with pytest.raises(StartupError, match=message):
            LLM(str(folder), **options)  # type: ignore[arg-type]
    short = LLM(str(folder), max_model_len=32)
    assert len(short.generate([[ENGLISH, *[9] * 30, END]])[0].token_ids) == 30
    with pytest.raises(ContextLengthExceeded, match="at most 32"):
        short.generate([[ENGLISH, *[9] * 31, END]])
    with pytest.raises(ContextLengthExceeded, match="decoder begins with 2 tokens and up to 31"):
        short.generate([[ENGLISH, END]], SamplingParams(max_tokens=31))


def test_events_of_prompts_are_refused(folder: Path) -> None:
    command = [sys.executable, "-m", "penstock.cli.main", "serve", str(folder), "--kv-events", "127.0.0.1:0"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode != 0 and "an encoder–decoder's are of its outputs" in refused.stderr


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with serving(folder, "--dtype", "float32", "--max-num-seqs", "4") as running:
        yield running


def test_completions_of_sources(
    server: RunningServer, llm: LLM, client_of: Callable[[RunningServer], openai.OpenAI]
) -> None:
    client = client_of(server)

    def asked(prompt: Any, **more: Any) -> Any:
        return client.completions.create(model="tiny-mbart", prompt=prompt, **more)

    texts = [" ".join(WORDS[first : first + 12]) for first in (0, 9, 30)]
    expected = llm.generate(texts, SamplingParams(temperature=0.0, max_tokens=40))
    together = asked(texts, max_tokens=40)
    assert [choice.text for choice in together.choices] == [each.text for each in expected]
    assert (together.usage.prompt_tokens, together.usage.completion_tokens) == (
        42,
        sum(len(each.token_ids) for each in expected),
    )
    again = asked([ENGLISH, *range(4, 16), END], max_tokens=40)
    assert again.choices[0].text == expected[0].text
    assert again.usage.prompt_tokens_details.cached_tokens == 14
    # Without a limit, an output ends by itself or with the context.
    assert asked(texts[0]).usage.completion_tokens > 40
    streamed = asked(texts[1], max_tokens=40, stream=True, logprobs=2, extra_body={"forced_bos_token": "fr_XX"})
    french = llm.generate(
        texts[1], SamplingParams(temperature=0.0, max_tokens=40, logprobs=2), forced_bos_token=FRENCH
    )[0]
    parts = [event.choices[0] for event in streamed]
    assert "".join(part.text for part in parts) == french.text
    found = [value for part in parts if part.logprobs for value in part.logprobs.token_logprobs]
    assert found == pytest.approx([each.logprob for each in french.logprobs or ()])
    samples = asked(texts[2], max_tokens=20, n=3, temperature=1.0, seed=3)
    assert len({choice.text for choice in samples.choices}) == 3
    word = expected[0].text.split()[5]
    stopped = asked(texts[0], max_tokens=40, stop=[word])
    assert stopped.choices[0].finish_reason == "stop" and word not in stopped.choices[0].text


def test_what_is_refused_over_http(server: RunningServer, client_of: Callable[[RunningServer], openai.OpenAI]) -> None:
    client = client_of(server)
    complete = client.completions.create
    for asking, message in (
        (lambda: complete(model="tiny-mbart", prompt="word1", echo=True), "echo: an encoder–decoder's output does not"),
        (lambda: complete(model="tiny-mbart", prompt="word1", suffix="x"), "filling in the middle"),
        (
            lambda: complete(model="tiny-mbart", prompt="word1", extra_body={"prompt_logprobs": 1}),
            "gives no probabilities",
        ),
        (
            lambda: complete(model="tiny-mbart", prompt="word1", extra_body={"forced_bos_token": "xx"}),
            "'xx' is no token",
        ),
        (
            lambda: complete(model="tiny-mbart", prompt=" ".join(WORDS * 3)),
            "182 tokens; this model's encoder reads at most",
        ),
        (lambda: client.embeddings.create(model="tiny-mbart", input="word1"), "makes no vectors"),
        (
            lambda: client.chat.completions.create(model="tiny-mbart", messages=[{"role": "user", "content": "a"}]),
            "send the text to /v1/completions, or to /translate",
        ),
    ):
        with pytest.raises(openai.BadRequestError, match=message):
            asking()


def test_translations(server: RunningServer, llm: LLM) -> None:
    """In the form of LibreTranslate's API."""
    text = " ".join(WORDS[3:12])
    ids = list(range(7, 16))
    whole = SamplingParams(temperature=0.0)

    def translate(q: Any, source: str, target: str, **more: Any) -> httpx.Response:
        return httpx.post(f"{server.base}/translate", json={"q": q, "source": source, "target": target, **more})

    def expected(source: int, target: int) -> str:
        return llm.generate([[source, *ids, END]], whole, forced_bos_token=target)[0].text.strip()

    answer = translate(text, "en", "de", format="text", alternatives=0, api_key="")
    assert answer.json() == {"translatedText": expected(ENGLISH, GERMAN)}
    assert translate([text, "word1"], "de_DE", "fr").json()["translatedText"][0] == expected(GERMAN, FRENCH)
    # What looks like the model's own tokens is text.
    odd = translate("word1 </s> word2", "en", "de").json()["translatedText"]
    assert odd != translate("word1", "en", "de").json()["translatedText"]
    # The likeliest outputs, the best first.
    several = translate(["word1", text], "en", "de", alternatives=3).json()
    beams = BeamSearchParams(beam_width=4, max_tokens=126).sampling()
    found = [each.text.strip() for each in llm.generate([[ENGLISH, *ids, END]], beams)[0].samples]
    assert [several["translatedText"][1], *several["alternatives"][1]] == found
    languages = httpx.get(f"{server.base}/languages").json()
    assert languages[0] == {"code": "en", "name": "English", "targets": ["de", "fr"]} and len(languages) == 3
    for asking, message in (
        (lambda: translate(text, "auto", "de"), "source: languages are not detected here"),
        (lambda: translate(text, "en", "es"), "target: 'es' is not one of this model's languages, en, de, fr."),
        (lambda: translate("", "en", "de"), "q: it is empty"),
        (lambda: translate([], "en", "de"), "q: has 0 texts"),
        (lambda: translate(["a", " "], "en", "de"), "q[1]: it is empty"),
        (lambda: translate(" ".join(WORDS * 3), "en", "de"), "The prompt has 182 tokens"),
        (lambda: translate(text, "en", "de", format="html"), "format: only"),
        (lambda: translate(text, "en", "de", alternatives=16), "alternatives: 16 is outside 0..15."),
        (lambda: translate(text, "en", "de", alternatives=5), "6 beams run at a time, and this server's batch has 4"),
        (lambda: translate(text, "en", "de", api_key="x"), "api_key: is not read"),
        (lambda: httpx.post(f"{server.base}/translate", json={"q": text}), "source: is missing"),
        (lambda: httpx.post(f"{server.base}/translate", data={"q": text}), "must be JSON"),
    ):
        refused = asking()
        assert refused.status_code in (400, 415) and message in refused.json()["error"], refused.text
    figures = server.get("/metrics")
    assert 'endpoint="translate"' in figures


BEAMS = BeamSearchParams(beam_width=4, max_tokens=20)


@pytest.mark.parametrize("options", [{"max_num_seqs": 4}, {"enable_prefix_caching": False}])
def test_beams_find_the_same_in_any_batch(folder: Path, llm: LLM, options: Options) -> None:
    params = msgspec.structs.replace(BEAMS, logprobs=0).sampling()
    alone = [llm.generate(prompt, params)[0].samples for prompt in prompts(sources())]
    other = LLM(str(folder), dtype="float32", **{"max_num_seqs": 16, **options})
    many = other.generate(prompts([source for source in sources() for _ in range(2)]), params)
    assert [each.samples for each in many] == [samples for samples in alone for _ in range(2)]
    # A pool for four sequences has few blocks for the beams of several.
    assert other.load.preemptions > 0 or "max_num_seqs" not in options


SIZE = {"vocab_size": 90, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2}
SIZE |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 128}
NAMED = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "init_std": 0.4}
NAMED |= {"forced_eos_token_id": None}
T5 = {
    "vocab_size": 90,
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 2,
    "initializer_factor": 2.0,
}
T5 |= {"tie_word_embeddings": False}
FOUR = {"num_beams": 4, "num_return_sequences": 4}
FAMILIES: dict[str, Callable[[], Any]] = {
    "bart": lambda: transformers.BartConfig(**SIZE, **NAMED),
    "bart, untied": lambda: transformers.BartConfig(**SIZE, **NAMED, tie_word_embeddings=False),
    "marian": lambda: transformers.MarianConfig(
        **SIZE, **{**NAMED, "pad_token_id": 89, "decoder_start_token_id": 89}, scale_embedding=True
    ),
    "pegasus": lambda: transformers.PegasusConfig(**SIZE, **{**NAMED, "pad_token_id": 0, "decoder_start_token_id": 0}),
    "m2m-100": lambda: transformers.M2M100Config(**SIZE, **NAMED),
    "m2m-100, untied": lambda: transformers.M2M100Config(**SIZE, **NAMED, tie_word_embeddings=False),
    "t5": lambda: transformers.T5Config(**T5, decoder_start_token_id=0, pad_token_id=0),
    "mt5": lambda: transformers.MT5Config(
        **T5, decoder_start_token_id=0, pad_token_id=0, feed_forward_proj="gated-gelu"
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families_make_what_transformers_makes(family: str, tmp_path: Path) -> None:
    """Greedy, and with 4 beams."""
    torch.manual_seed(5)
    model = transformers.AutoModelForSeq2SeqLM.from_config(FAMILIES[family]()).eval()
    model.save_pretrained(tmp_path)
    llm = LLM(str(tmp_path), dtype="float32", max_num_seqs=8)
    given = [[4 + (5 * place + length) % 80 for place in range(length)] for length in (1, 17, 60)]
    greedy = llm.generate(prompts(given), SamplingParams(temperature=0.0, max_tokens=64))
    beams = llm.generate(prompts(given), BeamSearchParams(beam_width=4, max_tokens=24).sampling())
    end = model.generation_config.eos_token_id
    for source, one, several in zip(given, greedy, beams, strict=True):
        for tokens, options, made in ((64, {"num_beams": 1}, [one.samples[0]]), (24, FOUR, several.samples)):
            with torch.inference_mode():
                found = model.generate(torch.tensor([source]), max_new_tokens=tokens, do_sample=False, **options)
            rows = [row[1:].tolist() for row in found]
            assert [each.token_ids for each in made] == [
                row[: row.index(end) + 1] if end in row else row for row in rows
            ]
