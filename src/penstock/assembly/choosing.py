"""What chooses tokens, put together from a tokenizer's table: for engines that compute, and for those that simulate."""

from penstock.core.config import EngineConfig
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.end_tokens import end_tokens
from penstock.models.declaration import ModelDeclaration
from penstock.runtime.parts import Choosing
from penstock.runtime.row_states import RowStates
from penstock.sampling.grammar import Grammars
from penstock.sampling.sampler import ChooseOnDevice, Sampler
from penstock.text.tokenizer import Tokenizer


def make_choosing(
    config: EngineConfig,
    checkpoint: Checkpoint,
    declaration: ModelDeclaration,
    tokenizer: Tokenizer | None,
    on_device: ChooseOnDevice | None,
) -> tuple[Choosing, Grammars | None]:
    """The sampler with what rows begin with, and the grammars that outputs are held to; none without a tokenizer."""
    grammars, vocabulary = None, declaration.vocab_size
    if tokenizer is not None:
        ends = end_tokens(checkpoint, tokenizer, vocabulary).ids
        grammars = Grammars(tokenizer.table, vocabulary, ends, config.threads)
    fill_masks = None if grammars is None else grammars.fill
    sampler = Sampler(vocabulary, fill_masks=fill_masks, on_device=on_device)
    table = None if tokenizer is None else tokenizer.table
    return Choosing(sampler, RowStates(table, grammars).begin), grammars
