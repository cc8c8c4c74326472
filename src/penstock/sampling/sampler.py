"""Chooses the next token of every row of a step."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.core.choosing import Asked, Found
from penstock.core.errors import NothingFits, RowFailed
from penstock.core.plan import Ending, Gained, TokenLogprobs, failed
from penstock.sampling.choice import Choice, Choose, ChosenFields, Masks, bits_of, likeliest
from penstock.sampling.distribution import Distribution, certain, distribution
from penstock.sampling.logprobs import scored_token, token_logprobs
from penstock.sampling.native import chooser
from penstock.sampling.noise import Purpose, position_key
from penstock.sampling.pipeline import Candidates, Floats
from penstock.sampling.row import GrammarState, RowState

Failure = RowFailed | NothingFits
"""Why a row gets no token."""


class FillMasks(Protocol):
    """What says which tokens grammars allow next."""

    def __call__(self, matchers: Sequence[GrammarState], masks: Masks) -> None:
        """Write one mask for each matcher."""


class TokensOnDevice(Protocol):
    """Tokens that a device chooses while the caller goes on."""

    @property
    def tokens(self) -> Tensor:
        """The tokens in the device's memory, in the order of what was asked, once it comes to them."""

    def read(self) -> Sequence[Found]:
        """Wait for them: for each that is asked a token, the row's peak, the token's log probability."""


ChooseOnDevice = Callable[[Tensor, Sequence[Asked]], TokensOnDevice]
"""Takes logits where they are, and waits for nothing."""


class Place(NamedTuple):
    """Where a token is to be chosen.

    Attributes:
        row: the one that the token is for.
        logits_row: which row of the logits is its own; samples of one prompt may share one.
        ahead: how many tokens come before it that are not chosen yet; the row has to be foreseeable.
    """

    row: RowState
    logits_row: int
    ahead: int = 0


class Target(NamedTuple):
    """What a row's next token is drawn from.

    Attributes:
        logits: its own, float32 [V], with penalties, biases and masks.
        peak: the largest of them.
        distribution: what temperature, top-k, top-p and min-p make of them.
    """

    logits: Floats
    peak: float
    distribution: Distribution

    def chosen(self, row: RowState, token: int) -> ChosenFields:
        """The token as if the row had chosen it."""
        if row.params.logprobs is None:
            return token, self.peak, 0.0, [], []
        found = token_logprobs(self.logits, self.peak, token, row.params.logprobs)
        return token, self.peak, found.logprob, found.top_tokens, found.top_logprobs


class ChoiceUnderWay:
    """What a device chooses meanwhile.

    Attributes:
        tokens: where they will be in its memory, in the order of the places.
    """

    def __init__(self, chosen: TokensOnDevice) -> None:
        self.tokens = chosen.tokens
        self._chosen = chosen

    def read(self) -> list[ChosenFields | Failure]:
        """Wait for it: the token at each place, or why there is none."""
        found: list[ChosenFields | Failure] = []
        for token, peak, logprob in self._chosen.read():
            if math.isfinite(peak):
                found.append((token, peak, logprob, [], []))
            else:
                found.append(RowFailed(_not_finite(peak)))
        return found


class Sampler:
    """Samples rows of logits of one vocabulary; it keeps buffers, so one step at a time."""

    def __init__(
        self,
        vocab_size: int,
        choose: Choose | None = None,
        fill_masks: FillMasks | None = None,
        on_device: ChooseOnDevice | None = None,
    ) -> None:
        """`choose` is the implementation, by default the fastest there is; rows with grammars need `fill_masks`.

        With `on_device` a row's logits stay where they are if nothing is to be edited, masked or listed beside a token.
        """
        self._on_device = on_device
        self._choose = chooser(vocab_size) if choose is None else choose
        self._fill_masks = fill_masks
        self._edited = np.empty((1, vocab_size), np.float32)
        self._masks: Masks = np.empty((0, (vocab_size + 31) // 32), np.uint32)
        self._floats = torch.empty(0, vocab_size, dtype=torch.float32)

    def sample(self, logits: Tensor, rows: Sequence[RowState], logit_index: Sequence[int]) -> list[Gained]:
        """Choose one token for each row and advance the row's state.

        Args:
            logits: [S, V] in bfloat16, float16 or float32, on any device; never written to.
            rows: states of the sequences, in any order.
            logit_index: for each row, which row of `logits` is its own; samples of one prompt may share one.

        Returns:
            What each row gained, in order. Where a row's logits are not finite at their largest, or no token is left,
            it has ended with an error and its state stays as it was; the others are not affected.
        """
        chosen = self.choose(logits, [Place(row, index) for row, index in zip(rows, logit_index, strict=True)])
        return [take(row, one) for row, one in zip(rows, chosen, strict=True)]

    def choose(self, logits: Tensor, places: Sequence[Place]) -> list[ChosenFields | Failure]:
        """What would be the next token at each place, or why there is none; no state is changed.

        `logits` are as in `sample`.
        """
        if self._on_device is None:
            return self._chosen_here(self._as_floats(logits), places)
        there = [place for place in places if _is_chosen_there(place.row)]
        here = [place for place in places if not _is_chosen_there(place.row)]
        begun = self._begun(self._on_device, logits, there) if there else None
        if not here:
            return begun.read() if begun else []
        # Only the logits that are not chosen from on their device are brought here.
        wanted = sorted({place.logits_row for place in here})
        if len(wanted) < len(logits):
            logits = logits.index_select(0, torch.tensor(wanted, device=logits.device))
            here = [place._replace(logits_row=wanted.index(place.logits_row)) for place in here]
        others, found = iter(self._chosen_here(self._as_floats(logits), here)), iter(begun.read() if begun else ())
        return [next(found if _is_chosen_there(place.row) else others) for place in places]

    def _chosen_here(self, floats: Floats, places: Sequence[Place]) -> list[ChosenFields | Failure]:
        """The same of logits in this process's memory."""
        masks, mask_of = self._masks_of([place.row for place in places])
        asked = list(zip(places, mask_of, strict=True))
        choices = [row.choice(logits_row, mask, ahead) for (row, logits_row, ahead), mask in asked if not row.editing]
        together = iter(self._choose(floats, choices, masks))
        found: list[ChosenFields | Failure] = []
        for (row, logits_row, _), mask in asked:
            try:
                chosen = self._edit_and_choose(floats[logits_row], row, masks, mask) if row.editing else next(together)
                if not math.isfinite(chosen[1]):
                    if mask >= 0 and math.isfinite(float(floats[logits_row].max())):
                        raise _nothing_fits(row, masks, mask)
                    raise RowFailed(_not_finite(chosen[1]))
                found.append(chosen)
            except (RowFailed, NothingFits) as failure:
                found.append(failure)
        return found

    @property
    def is_elsewhere(self) -> bool:
        """Whether tokens can be chosen where logits are."""
        return self._on_device is not None

    def can_begin(self, row: RowState) -> bool:
        """Whether the row's tokens can be chosen where logits are before those that come ahead are known here."""
        return self.is_elsewhere and row.foreseeable and _is_chosen_there(row)

    def begin(self, logits: Tensor, places: Sequence[Place]) -> ChoiceUnderWay:
        """Have the next token at each place chosen where the logits are, without waiting; as in `choose` otherwise.

        All rows must be such as `can_begin` says.
        """
        assert self._on_device is not None, "tokens are chosen here"
        return self._begun(self._on_device, logits, places)

    @staticmethod
    def _begun(choose: ChooseOnDevice, logits: Tensor, places: Sequence[Place]) -> ChoiceUnderWay:
        asked: list[Asked] = []
        for row, logits_row, ahead in places:
            choice = row.choice(logits_row, -1, ahead)
            key = position_key(choice.seed, choice.sample_index, Purpose(choice.purpose), choice.position)
            asked.append((logits_row, choice.temperature, choice.top_k, choice.top_p, choice.log_min_p, key))
        return ChoiceUnderWay(choose(logits, asked))

    def target(self, logits: Tensor, row: RowState, index: int) -> Target:
        """What the row's next token is drawn from, where row `index` of the logits is its own.

        Raises RowFailed or NothingFits where a token cannot be drawn.
        """
        edited = self._edit(self._as_floats(logits[index : index + 1])[0], row).copy()
        masks, (mask,) = self._masks_of([row])
        if mask >= 0:
            edited[~bits_of(masks[mask], edited.size)] = -np.inf
        peak = float(edited.max())
        if not math.isfinite(peak):
            raise _nothing_fits(row, masks, mask)
        return Target(edited, peak, distribution(edited, peak, row.choice(0)))

    def score(self, logits: Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprobs]:
        """How likely each of `tokens` is by its row of `logits` alone, with the `top` most likely ones beside it.

        Raises RowFailed where the logits are not finite at their largest.
        """
        floats = self._as_floats(logits)
        # At temperature 0 the most likely token is chosen, whatever the seed, and its log probability is what the
        # others' follow from.
        asked = [Choice(row, -1, 0, *likeliest(top)) for row in range(len(tokens))]
        found = self._choose(floats, asked, self._masks[:0])
        scores = []
        for row, token, (_, peak, logprob, top_tokens, top_logprobs) in zip(floats, tokens, found, strict=True):
            if not math.isfinite(peak):
                raise RowFailed(_not_finite(peak))
            scores.append(scored_token(row, token, peak, logprob, top_tokens, top_logprobs))
        return scores

    def guess(self, logits: Tensor, choices: Sequence[Choice]) -> list[int]:
        """One token for each choice, which has no mask; 0 where the logits are not finite at their largest."""
        chosen = self._choose(self._as_floats(logits), choices, self._masks[:0])
        return [token if math.isfinite(peak) else 0 for token, peak, *_ in chosen]

    def ranked(self, logits: Tensor, choices: Sequence[Choice], count: int) -> list[list[tuple[int, float]]]:
        """For each choice of `guess` up to `count` tokens, each chosen as if those before it were not there.

        Beside each stands its probability by the logits alone.
        """
        floats = self._as_floats(logits)
        allowed = np.full((len(choices), self._masks.shape[1]), 0xFFFFFFFF, np.uint32)
        found: list[list[tuple[int, float]]] = [[] for _ in choices]
        left = [1.0] * len(choices)
        for turn in range(count):
            asked = [choice._replace(mask=place if turn else -1, logprobs=0) for place, choice in enumerate(choices)]
            for place, (token, peak, logprob, _, _) in enumerate(self._choose(floats, asked, allowed)):
                if not math.isfinite(peak):
                    continue
                probability = left[place] * math.exp(logprob)
                left[place] -= probability
                found[place].append((token, probability))
                allowed[place, token // 32] &= ~np.uint32(1 << token % 32)
        return found

    def distributions(self, logits: Tensor, choices: Sequence[Choice]) -> list[Distribution]:
        """What each choice of `guess` is drawn from."""
        floats, found = self._as_floats(logits), []
        for choice in choices:
            row = floats[choice.row]
            peak = float(row.max())
            found.append(distribution(row, peak, choice) if math.isfinite(peak) else certain(0))
        return found

    def _masks_of(self, rows: Sequence[RowState]) -> tuple[Masks, list[int]]:
        """The masks of the rows that have a grammar, and for each row the place of its own, -1 for none."""
        matchers: list[GrammarState] = []
        places = []
        for row in rows:
            places.append(-1 if row.grammar is None else len(matchers))
            if row.grammar is not None:
                matchers.append(row.grammar)
        if len(self._masks) < len(matchers):
            self._masks = np.empty((len(rows), self._masks.shape[1]), np.uint32)
        masks = self._masks[: len(matchers)]
        if matchers:
            assert self._fill_masks is not None, "a row has a grammar"
            self._fill_masks(matchers, masks)
        return masks, places

    def _as_floats(self, logits: Tensor) -> Floats:
        """The logits as float32 in host memory, without a copy where they are that already."""
        if logits.dtype is torch.float32 and logits.is_cpu and logits.is_contiguous():
            view: Floats = logits.numpy()
            return view
        if len(self._floats) < len(logits):
            self._floats = torch.empty(logits.shape, dtype=torch.float32)
        target = self._floats[: len(logits)]
        target.copy_(logits)
        converted: Floats = target.numpy()
        return converted

    def _edit_and_choose(self, logits: Floats, row: RowState, masks: Masks, mask: int) -> ChosenFields:
        """Choose from a copy of the row that the editing steps have changed."""
        self._edit(logits, row)
        (chosen,) = self._choose(self._edited, [row.choice(0, mask)], masks)
        if not math.isfinite(chosen[1]):
            raise _nothing_fits(row, masks, mask)
        return chosen

    def _edit(self, logits: Floats, row: RowState) -> Floats:
        """A copy of the row that the editing steps have changed, which stays until the next."""
        peak = float(logits.max())
        if not math.isfinite(peak):
            raise RowFailed(_not_finite(peak))
        edited: Floats = self._edited[0]
        np.copyto(edited, logits)
        candidates = Candidates(edited)
        for step in row.editing:
            step.apply(candidates)
        return edited


def _is_chosen_there(row: RowState) -> bool:
    """Whether its token can be chosen where logits are: whatever it needs beside them is here."""
    return not row.editing and row.grammar is None and not row.params.logprobs and not row.continuations


def take(row: RowState, chosen: ChosenFields | Failure) -> Gained:
    """Give the row the token that was chosen for it, or end it with what went wrong, its state being as it was."""
    if isinstance(chosen, Failure):
        return _failed(chosen)
    token, _, logprob, top_tokens, top_logprobs = chosen
    logprobs = None
    if row.params.logprobs is not None:
        logprobs = [TokenLogprobs(token, logprob, top_tokens, top_logprobs)]
    try:
        finish, reason = row.advance(token)
    except NothingFits as failure:
        return _failed(failure)
    return Gained([token], None if finish is None else Ending(finish, reason), logprobs)


def _failed(failure: Failure) -> Gained:
    code = failure.code if isinstance(failure, NothingFits) else None
    return failed(failure.message, code)


def _nothing_fits(row: RowState, masks: Masks, mask: int) -> NothingFits:
    """Why none of the tokens is left, although the model's logits are finite."""
    grammar = row.params.grammar
    if grammar is not None and mask >= 0 and not masks[mask].any():
        return NothingFits(f"{grammar.param}: nothing that fits can follow this output; ask for something simpler.")
    return NothingFits(
        "No token can come next that the grammar, allowed_token_ids, bad_words, logit_bias, penalties and min_tokens "
        "leave; ask for fewer of them."
    )


def _not_finite(peak: float) -> str:
    if math.isnan(peak):
        return "The model computed NaN for this request's next token; try another dtype or check the weights."
    if peak > 0:
        return "The model computed an infinite logit for this request's next token; try another dtype."
    return "The model gave no token a probability above zero for this request's next token; check the weights."
