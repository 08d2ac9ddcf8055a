"""Formulas: the classes of logits processors that compute rows alike, and what each reads of the tokens before a place."""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Mapping
from collections.abc import Sequence as Rows
from typing import Any

import attrs
import torch
from transformers import generation as hf

from specframe.contracts.requests import ProcessorKind, SamplingPlan


class PresencePenalty(hf.LogitsProcessor):
    """Logits processor that subtracts a constant from the score of every token generated before."""

    def __init__(self, penalty: float, prompt_length: int) -> None:
        self.penalty, self.prompt_length = penalty, prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        """Return the penalised scores."""
        seen = torch.zeros_like(scores).scatter_(1, input_ids[:, self.prompt_length :], self.penalty)
        return scores - seen


class FrequencyPenalty(PresencePenalty):
    """Logits processor that subtracts a constant from a token's score as often as the token was generated before.

    It counts, so it is none of the formulas below, and is called for one place at a time.
    """

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        """Return the penalised scores."""
        generated = input_ids[:, self.prompt_length :]
        return scores.scatter_add(1, generated, torch.full_like(generated, -self.penalty, dtype=scores.dtype))


class Reads(enum.Enum):
    """What of a prefix a formula depends on. Prefixes of different lengths are shown in a form that it cannot distinguish."""

    NOTHING = enum.auto()
    COUNT = enum.auto()
    """The number of its tokens, as far as :attr:`Formula.effect` depends on it."""
    TAIL = enum.auto()
    """Its last tokens, as many as :attr:`Formula.effect` says."""
    SET = enum.auto()
    """The tokens that occur in it after the first :attr:`Formula.since`, however often. A shorter prefix begins with copies of its
    last token."""
    ORDER = enum.auto()
    """Where its last tokens occur in it. A shorter prefix begins with :data:`specframe.text.prefixes.NO_TOKEN`, which equals no
    token."""


def always(processor: Any, length: int) -> Hashable:
    """Return the one effect of a formula that does the same everywhere."""
    return True


@attrs.frozen
class Formula:
    """How the processors of a class depend on a prefix."""

    reads: Reads = Reads.NOTHING
    parameters: tuple[str, ...] | None = None
    """The attributes that the formula depends on, apart from what ``effect`` takes into account, or None for all."""
    effect: Callable[[Any, int], Hashable] = always
    """(processor, tokens of the prefix) -> what it does there, None: nothing. Where it is equal, processors of a kind act alike."""
    since: Callable[[Any], int] = lambda processor: 0
    """The number of first tokens that are not read, nor shown."""
    called: Callable[[Any], Any] = lambda processor: processor
    """The processor that is called in place of one with such tokens: it reads all that it is shown."""
    fits: Callable[[Any], bool] = lambda processor: True
    """Whether a processor is this formula as it was made."""


def ignored_length(processor: Any) -> Any:
    """Return the number of first tokens that a repetition penalty leaves out, None: none; for several rows a tensor."""
    return getattr(processor, "prompt_ignore_length", None)


STOPS = ("eos_token_id",)
BIASED = Formula(
    Reads.TAIL, ("sequence_bias",), lambda one, length: min(length, max(map(len, one.sequence_bias), default=1))
)
"""It reads as many of the last tokens as the longest sequence that has a bias."""

FORMULAS: Mapping[type, Formula] = {
    hf.TemperatureLogitsWarper: Formula(),
    hf.TopKLogitsWarper: Formula(),
    hf.TopPLogitsWarper: Formula(),
    hf.MinPLogitsWarper: Formula(),
    hf.TypicalLogitsWarper: Formula(),
    hf.TopHLogitsWarper: Formula(),
    hf.EpsilonLogitsWarper: Formula(),
    hf.EtaLogitsWarper: Formula(),
    hf.SuppressTokensLogitsProcessor: Formula(),
    hf.InfNanRemoveLogitsProcessor: Formula(),
    hf.LogitNormalization: Formula(),
    hf.MinLengthLogitsProcessor: Formula(
        Reads.COUNT, STOPS, lambda one, length: True if length < one.min_length else None
    ),
    hf.MinNewTokensLengthLogitsProcessor: Formula(
        Reads.COUNT,
        STOPS,
        lambda one, length: True if length - one.prompt_length_to_skip < one.min_new_tokens else None,
    ),
    hf.ForcedBOSTokenLogitsProcessor: Formula(
        Reads.COUNT, ("bos_token_id",), lambda one, length: True if length == 1 else None
    ),
    hf.ForcedEOSTokenLogitsProcessor: Formula(
        Reads.COUNT, STOPS, lambda one, length: True if length == one.max_length - 1 else None
    ),
    hf.ExponentialDecayLengthPenalty: Formula(
        Reads.COUNT,
        ("regulation_factor", *STOPS),
        lambda one, length: length - one.regulation_start if length > one.regulation_start else None,
    ),
    hf.SuppressTokensAtBeginLogitsProcessor: Formula(
        Reads.COUNT, ("begin_suppress_tokens",), lambda one, length: True if length == one.begin_index else None
    ),
    hf.SequenceBiasLogitsProcessor: BIASED,
    hf.NoBadWordsLogitsProcessor: BIASED,
    hf.RepetitionPenaltyLogitsProcessor: Formula(
        Reads.SET,
        ("penalty",),
        since=lambda one: ignored_length(one) or 0,
        called=lambda one: hf.RepetitionPenaltyLogitsProcessor(one.penalty) if ignored_length(one) else one,
        fits=lambda one: not isinstance(ignored_length(one), torch.Tensor),
    ),
    PresencePenalty: Formula(
        Reads.SET, ("penalty",), since=lambda one: one.prompt_length, called=lambda one: PresencePenalty(one.penalty, 0)
    ),
    hf.NoRepeatNGramLogitsProcessor: Formula(Reads.ORDER, fits=lambda one: one.ngram_size > 1),
}
"""The classes that are one formula over any number of prefixes. A subclass may be another one, and is not among them.

Of a prefix they read no more than is written here, which a test holds for each of them, to the bit."""


def plan_of(processors: Rows[Any], greedy: bool, lead: tuple[int, ...] = (), own: bool = False) -> SamplingPlan:
    """Return the plan that applies ``processors`` in their order; the other arguments are fields of :class:`SamplingPlan`."""
    return SamplingPlan(tuple(processors), tuple(map(kind_of, processors)), greedy, lead, own)


def kind_of(processor: Any) -> ProcessorKind | None:
    """Return what a processor computes, or None if it has to be called for one place at a time."""
    formula = FORMULAS.get(type(processor))
    if formula is None or not formula.fits(processor):
        return None
    held = vars(processor)
    names = held if formula.parameters is None else formula.parameters
    return ProcessorKind(type(processor), tuple((name, hashable(held[name])) for name in names))


def hashable(value: Any) -> Hashable:
    """Return an attribute of a processor so that equal ones compare equal."""
    if isinstance(value, torch.Tensor):
        return hashable(value.tolist())
    if isinstance(value, Mapping):
        return tuple((hashable(key), hashable(one)) for key, one in value.items())
    held: Hashable = tuple(map(hashable, value)) if isinstance(value, list | tuple) else value
    return held
