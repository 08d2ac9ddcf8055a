"""Sampling parameters of one request, and the shaping of logits by them.

Transformers' own logits processors shape the logits, at every position of a block (:mod:`specframe.text.processors`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

import attrs
import torch

from specframe.contracts.drafts import Draft
from specframe.contracts.round import Batch
from specframe.devices.kinds import constant
from specframe.errors import OptionError, UnknownNameError, literal
from specframe.text.constrained_logits import constrain
from specframe.text.prefixes import Prefixes
from specframe.text.processor_formulas import FORMULAS, Reads
from specframe.text.processors import process
from specframe.value_checks import MOST_SAMPLES, flag, number, number_within, whole, whole_within

NOT_LOGITS = frozenset({"processors", "criteria", "max_new_tokens", "logprobs", "samples"})
"""Parameters that a generation config does not have, or that :meth:`specframe.Pipeline.generate` handles."""


def each(name: str, values: Any, accepts: Callable[[Any], bool], expected: str) -> None:
    """Raise :class:`OptionError` unless ``values`` is a list or a tuple of accepted values."""
    if not isinstance(values, tuple | list) or not all(map(accepts, values)):
        raise OptionError(f"{name}: expected {expected}, got {literal(values)}")


def is_id(value: Any) -> bool:
    """Return whether a value may be a token id."""
    return whole_within(value, 0)


def is_word(value: Any) -> bool:
    """Return whether a value is a list of at least one token id."""
    return isinstance(value, tuple | list) and len(value) > 0 and all(map(is_id, value))


def is_bias(value: Any) -> bool:
    """Return whether a value is a pair of token ids and the number that is added to the score of the last of them."""
    return isinstance(value, tuple | list) and len(value) == 2 and is_word(value[0]) and number_within(value[1])


def is_text(value: Any) -> bool:
    """Return whether a value is a text that is not empty."""
    return isinstance(value, str) and value != ""


def is_callable(value: Any) -> bool:
    """Return whether a value can be called and is not a class: a class is mostly passed by mistake for its object."""
    return callable(value) and not isinstance(value, type)


def freeze(value: Any) -> Any:
    """Return a value with its lists, nested ones included, as tuples."""
    return tuple(map(freeze, value)) if type(value) is list else value


def checked(check: Callable[..., Any], **bounds: Any) -> Callable[[Any, Any, Any], None]:
    """Return a validator that raises :class:`OptionError` for a value that a check does not accept. Any value may be None."""

    def validate(one: Any, field: Any, value: Any) -> None:
        if value is not None or field.default is not None:
            check(field.name, value, **bounds)

    return validate


def several(given: Any) -> Any:
    """Return one text as a tuple; return anything else as it is, with lists as tuples."""
    return (given,) if isinstance(given, str) else freeze(given)


@attrs.frozen
class Sampling:
    """Parameters of one request: how its tokens are chosen, when it ends and what its result holds.

    A parameter left open (None) takes the value of the target's generation config. Without a value there it has no effect, so
    that decoding is greedy by default. Names and meanings are those of transformers' ``GenerationConfig``. In addition:

    - ``presence_penalty`` is subtracted from the score of every token that occurs in the generated part, ``frequency_penalty``
      as often as it does.
    - ``sequence_bias`` has pairs of token ids and the number that is added to the score of the last of them after the others.
    - ``forced_eos``: the last token within the length limit is an eos id.
    - ``processors`` are the user's ``LogitsProcessor`` objects, applied first. ``criteria`` are the user's ``StoppingCriteria``.
    - ``stop``: strings that end the continuation. The token ids include the token that completes the string; the text ends before
      the string. The first ``min_new_tokens`` tokens are not searched.
    - ``max_new_tokens`` overrides the number given for all prompts.
    - ``max_time``: seconds from the start of the prompt's decoding until its continuation ends; the current round is completed.
    - ``logprobs``: the result holds the target's log-probability of each token, and of this many most likely tokens (0: none).
    - ``samples``: number of continuations of the prompt, each with its own random numbers; the prompt is read once.

    Raises:
        OptionError: a parameter does not accept its value.
    """

    temperature: float | None = attrs.field(default=None, validator=checked(number, least=0))
    top_k: int | None = attrs.field(default=None, validator=checked(whole, least=0))
    top_p: float | None = attrs.field(default=None, validator=checked(number, least=0, most=1, above=True))
    min_p: float | None = attrs.field(default=None, validator=checked(number, least=0, most=1))
    typical_p: float | None = attrs.field(default=None, validator=checked(number, least=0, most=1, above=True))
    repetition_penalty: float | None = attrs.field(default=None, validator=checked(number, least=0, above=True))
    presence_penalty: float | None = attrs.field(default=None, validator=checked(number))
    min_new_tokens: int | None = attrs.field(default=None, validator=checked(whole, least=0))
    bad_words_ids: tuple[tuple[int, ...], ...] | None = attrs.field(
        default=None, converter=freeze, validator=checked(each, accepts=is_word, expected="lists of token ids")
    )
    suppress_tokens: tuple[int, ...] | None = attrs.field(
        default=None, converter=freeze, validator=checked(each, accepts=is_id, expected="token ids")
    )
    forced_eos: bool | None = attrs.field(default=None, validator=checked(flag))
    processors: tuple[Any, ...] = attrs.field(
        default=(),
        converter=freeze,
        validator=checked(each, accepts=is_callable, expected="a list of LogitsProcessor objects"),
    )
    stop: tuple[str, ...] | None = attrs.field(
        default=None,
        converter=several,
        validator=checked(each, accepts=is_text, expected="a text or several, none of them empty"),
    )
    criteria: tuple[Any, ...] = attrs.field(
        default=(),
        converter=freeze,
        validator=checked(each, accepts=is_callable, expected="a list of StoppingCriteria objects"),
    )
    max_new_tokens: int | None = attrs.field(default=None, validator=checked(whole, least=1))
    max_time: float | None = attrs.field(default=None, validator=checked(number, least=0, above=True))
    logprobs: int | None = attrs.field(default=None, validator=checked(whole, least=0))
    samples: int = attrs.field(default=1, validator=checked(whole, least=1, most=MOST_SAMPLES))
    frequency_penalty: float | None = attrs.field(default=None, validator=checked(number))
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] | None = attrs.field(
        default=None,
        converter=freeze,
        validator=checked(each, accepts=is_bias, expected="pairs of token ids and a number"),
    )

    @classmethod
    def parameters(cls) -> list[str]:
        """Return the names of the parameters that can be written as text or JSON: all but ``processors`` and ``criteria``."""
        return [field.name for field in attrs.fields(cls) if field.name not in ("processors", "criteria")]

    def with_parameters(self, given: Mapping[str, Any]) -> Sampling:
        """Return a copy with the given parameters replaced.

        Raises:
            OptionError: a name is unknown, or a parameter does not accept its value.
        """
        for name in given:
            if name not in self.parameters():
                raise UnknownNameError("sampling parameter", name, self.parameters())
        return attrs.evolve(self, **given)

    @property
    def given(self) -> dict[str, Any]:
        """The parameters with a value that a generation config may have, too."""
        values = attrs.asdict(self, recurse=False)
        return {name: value for name, value in values.items() if name not in NOT_LOGITS and value is not None}

    @property
    def greedy(self) -> bool:
        """Whether no temperature above 0 is given."""
        return not self.temperature


class SamplingParameters(TypedDict, total=False):
    """The parameters of :class:`Sampling` as keyword arguments, for who checks types; ``max_new_tokens`` is one already."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    min_new_tokens: int | None
    bad_words_ids: Iterable[Iterable[int]] | None
    suppress_tokens: Iterable[int] | None
    forced_eos: bool | None
    processors: Iterable[Any]
    stop: str | Iterable[str] | None
    criteria: Iterable[Any]
    max_time: float | None
    logprobs: int | None
    samples: int
    frequency_penalty: float | None
    sequence_bias: Iterable[tuple[Iterable[int], float]] | None


def apply_processors(
    batch: Batch, drafted_BN: torch.Tensor, logits_BTV: torch.Tensor, parents_BN: torch.Tensor | None = None
) -> torch.Tensor:
    """Return logits shaped by each row's constraint, and then by its plan; float32 if any row has either.

    Args:
        batch: the rows.
        drafted_BN: the N draft tokens of each row.
        logits_BTV: logits of the last T positions, T at most N + 1. In a chain, the last position follows all of ``drafted_BN``.
        parents_BN: index of the draft token that each draft token follows, -1: the row's last token, or None for a chain.
    """
    if is_unshaped(batch):
        return logits_BTV
    scores_BTV = logits_BTV.float().clone(memory_format=torch.contiguous_format)
    constrain(batch, drafted_BN, scores_BTV, parents_BN)
    plans = [sequence.request.plan for sequence in batch.sequences]
    if not any(plan.processors for plan in plans):
        return scores_BTV
    prefixes = Prefixes(batch, [plan.lead for plan in plans], drafted_BN, scores_BTV.shape[1], parents_BN)
    return process(plans, prefixes, scores_BTV)


def is_unshaped(batch: Batch) -> bool:
    """Return whether :func:`apply_processors` leaves the logits of all rows as they are."""
    return not [one for one in batch.sequences if one.request.plan.processors or one.guide]


def reads_tokens(batch: Batch) -> bool:
    """Return whether some row's logits are shaped by its tokens, or by their number, as the host has them."""
    return any(
        sequence.guide
        or any(
            kind is None or FORMULAS[kind.formula].reads is not Reads.NOTHING for kind in sequence.request.plan.kinds
        )
        for sequence in batch.sequences
    )


def one_hot_greedy_rows(batch: Batch, scores_BTV: torch.Tensor) -> torch.Tensor:
    """Return scores in which the most likely token of every greedy row has probability 1.

    Acceptance rules that compare probabilities or add noise then decode these rows greedily.
    """
    greedy = [sequence.request.plan.greedy for sequence in batch.sequences]
    if not any(greedy):
        return scores_BTV
    greedy_B11 = constant(tuple(greedy), scores_BTV.device)[:, None, None]
    scores_BTV = scores_BTV.float()
    peaks = torch.full_like(scores_BTV, float("-inf")).scatter_(-1, scores_BTV.argmax(-1, keepdim=True), 0.0)
    return torch.where(greedy_B11, peaks, scores_BTV)


def undecided_places(batch: Batch, scores_BTV: torch.Tensor) -> torch.Tensor:
    """Return the positions at which there is no token to choose, as a bool tensor (B, T).

    At such a position a score is nan, or the highest one is infinite; a user's processors may set it to infinity, to have this
    token chosen. The result stays on the device.
    """
    best_BT = scores_BTV.amax(-1)  # nan if there is one
    faults_BT = (best_BT - best_BT).isnan()  # for nan and infinity alone
    own = [sequence.request.plan.own for sequence in batch.sequences]
    if any(own):
        faults_BT &= (best_BT != float("inf")) | ~constant(tuple(own), best_BT.device)[:, None]
    return faults_BT


def undrawn_rows(batch: Batch, draft: Draft) -> torch.Tensor | None:
    """Return the rows of which a draft token was drawn from logits that are no distribution, as a bool tensor (B,).

    The token with the highest of its logits was drawn, so where one is nan or infinite, so is its own. Rows with processors of the
    user's own are left out: these shape a drafter's logits, too. None if a draft has no logits. The result stays on the device.
    """
    if draft.logits_BNV is None or not draft.nodes:
        return None
    own_BN = draft.logits_BNV.gather(2, draft.tokens_BN[..., None])[..., 0]
    faults_BN = ~(own_BN < float("inf"))  # nan is not
    if draft.counts_B is not None:
        faults_BN &= torch.arange(draft.nodes, device=own_BN.device) < draft.counts_B[:, None]
    own = [sequence.request.plan.own for sequence in batch.sequences]
    if any(own):
        faults_BN &= ~constant(tuple(own), own_BN.device)[:, None]
    return faults_BN.any(1)
