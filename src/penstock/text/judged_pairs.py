"""A query and a document as Qwen3-Reranker reads them: as a task, whose answer is yes or no."""

from collections.abc import Sequence

from penstock.core.errors import InvalidParameter
from penstock.text.pairs import Cut, Pair
from penstock.text.tokenizer import Tokenizer, unused_marker

# Zhang et al., Qwen3 Embedding, 2025, and the models' published cards, word by word.
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_BEHIND = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def judged_pairs(
    tokenizer: Tokenizer, query: str, documents: Sequence[str], cut: Cut | None = None, instruction: str | None = None
) -> list[Pair]:
    """The sequence of a query with each document, for a task that `instruction` describes; None: the usual one.

    Special tokens in texts are ordinary text: no document can answer for the model. What does not fit is left out at
    the document's end. Raises InvalidParameter, and IndexError where there is no room for any token of a text.
    """
    if cut is not None and (cut.end != "right" or cut.most_second is not None):
        raise InvalidParameter(
            "truncation_side" if cut.end != "right" else "max_tokens_per_doc",
            "this model reads query and document as one text, which is cut at its end; use truncate_prompt_tokens.",
        )
    before, behind = (tokenizer.encode(part, add_special_tokens=False) for part in (_BEFORE, _BEHIND))
    pairs = []
    for document in documents:
        ids = _plain(tokenizer, f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: {document}")
        kept = ids
        if cut is not None and cut.most is not None:
            room = cut.most - len(before) - len(behind)
            if room < 1:
                raise IndexError(f"{cut.most} tokens leave no room for texts")
            kept = ids[:room]
        pairs.append(Pair([*before, *kept, *behind], 0, len(ids) - len(kept)))
    return pairs


def _plain(tokenizer: Tokenizer, text: str) -> list[int]:
    if not tokenizer.has_special(text):
        return tokenizer.encode(text, add_special_tokens=False)
    marker = unused_marker([text])
    if marker is None:
        raise InvalidParameter("documents", "it has all characters that could mark special tokens in it.")
    return tokenizer.encode_marked(tokenizer.mark_special(text, marker), marker)
