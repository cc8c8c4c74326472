"""The tokenizer: byte-level BPE (Sennrich et al., 2016, on bytes) over the corpus, digits one by one, tokens for turns.

python -m training.tokenizer        # writes build/training/tokenizer
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from training.data import CHAT_TEMPLATE, render, training_conversations
from training.recipe import CONTEXT, VOCABULARY, WORK

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
TURNS = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
# Parts of answers: they are shown, as in other models' templates.
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
CONVERSATIONS = 40_000


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learn merges; special tokens come first, so their ids never depend on the text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True, normalized=False) for token in (BEGIN, END, PAD, *TURNS)]
    special += [AddedToken(token, special=False, normalized=False) for token in MARKS]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # The trainer declares everything that it is given special; tool marks are text that is shown.
    tokenizer = _unspecial(tokenizer)
    begin = tokenizer.token_to_id(BEGIN)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B", special_tokens=[(BEGIN, begin)]),
        ]
    )
    return tokenizer


def _unspecial(tokenizer: Tokenizer) -> Tokenizer:
    content = json.loads(tokenizer.to_str())
    for token in content["added_tokens"]:
        token["special"] = token["content"] not in MARKS
    return Tokenizer.from_str(json.dumps(content))


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template as Hugging Face's libraries read them."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE.read_text())


def main() -> None:
    """Train on the first conversations of the corpus and save."""
    tokenizer = train_tokenizer(map(render, training_conversations(range(CONVERSATIONS))))
    save_tokenizer(tokenizer, WORK / "tokenizer")
    print(f"{tokenizer.get_vocab_size()} tokens in {WORK / 'tokenizer'}")


if __name__ == "__main__":
    main()
