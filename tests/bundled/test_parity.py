"""transformers reads the bundled directories as Penstock does: the same prompts, the same greedy tokens in float32."""

import pytest
import torch

from penstock import LLM, BeamSearchParams, SamplingParams
from penstock.bundled.corpus.generator import held_out, training
from penstock.bundled.registry import bundled_models
from penstock.llm import chat_encoder

OUTPUT = 48


def conversations(each_kind: int):
    """Single requests, conversations of several turns, and one with functions."""
    found = [held_out(kind, index) for kind in ("medium", "hard") for index in range(each_kind)]
    found.append(
        next(
            each for each in (training(9, index) for index in range(1000)) if each.tools and "tool_answer" in each.tasks
        )
    )
    return found


@pytest.mark.parametrize("model", bundled_models(), ids=lambda model: model.name)
def test_greedy_tokens_are_those_of_transformers(model, pytestconfig: pytest.Config) -> None:
    transformers = pytest.importorskip("transformers")
    directory = model.installed()
    reference = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    llm = LLM(model.name, dtype="float32", max_model_len=2048, threads=1)
    assert llm.tokenizer is not None
    encoder = chat_encoder(llm.tokenizer)
    prompts = []
    for conversation in conversations(6 if pytestconfig.getoption("slow") else 2):
        last = max(index for index, message in enumerate(conversation.messages) if message["role"] == "assistant")
        messages, tools = list(conversation.messages[:last]), list(conversation.tools) or None
        ids = encoder.encode(messages, tools=tools)
        theirs = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=False)
        assert ids == list(theirs)
        prompts.append(ids)
    params = SamplingParams(temperature=0, max_tokens=OUTPUT)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)
    for ids, output in zip(prompts, outputs, strict=True):
        with torch.inference_mode():
            whole = reference.generate(
                torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                max_new_tokens=OUTPUT, do_sample=False, temperature=None, top_p=None,
            )  # fmt: skip
        theirs = whole[0, len(ids) :].tolist()
        mine = list(output.token_ids)
        # The token that ends an answer is in theirs.
        assert mine == theirs[: len(mine)]
        assert len(theirs) - len(mine) in (0, 1)
    check_beams(reference, llm, prompts[:1])


def check_beams(reference, llm: LLM, prompts: list[list[int]]) -> None:
    """Beam search finds what transformers finds: most outputs end by themselves, and their lengths count."""
    ended = 0
    for length_penalty, early_stopping in ((1.0, False), (0.0, True), (2.0, "never")):
        params = BeamSearchParams(
            beam_width=4, max_tokens=OUTPUT, length_penalty=length_penalty, early_stopping=early_stopping
        )
        found = llm.beam_search([{"prompt_token_ids": ids} for ids in prompts], params)
        for ids, completion in zip(prompts, found, strict=True):
            with torch.inference_mode():
                whole = reference.generate(
                    torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                    max_new_tokens=OUTPUT, do_sample=False, temperature=None, top_p=None, num_beams=4,
                    num_return_sequences=4, length_penalty=length_penalty, early_stopping=early_stopping,
                )  # fmt: skip
            for sample, theirs in zip(completion.samples, whole[:, len(ids) :].tolist(), strict=True):
                mine = sample.token_ids
                assert mine == theirs[: len(mine)]
                assert len(mine) == OUTPUT or sample.finish_reason == "stop"
                ended += sample.finish_reason == "stop"
    assert ended > len(prompts)
