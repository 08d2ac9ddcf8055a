"""What one request asks for: how its tokens are chosen, when it ends, what is told of it.

Tokens are chosen through transformers' own logits processors, at every position of a block.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from collections.abc import Sequence as Rows
from typing import Any

import attrs
import torch
from transformers import generation as hf

from specframe.errors import OptionError, UnknownNameError
from specframe.plan import Plan
from specframe.types import Batch

WHOLE = frozenset({"top_k", "min_new_tokens", "max_new_tokens", "logprobs", "samples"})
"""Parameters that are whole numbers."""
OPTIONAL = frozenset({"max_new_tokens", "max_time", "logprobs"})
"""Parameters that may be left out."""
ABOVE_ZERO = 1e-9
"""The least that counts as more than nothing."""


def several(given: Any) -> Any:
    """Return one text as a tuple of it, anything else as it is."""
    return (given,) if isinstance(given, str) else given


@attrs.frozen(slots=False)
class Sampling:
    """How the tokens of one request are chosen, when it ends and what is told of it. The defaults are greedy decoding.

    Names and meanings are those of transformers' ``GenerationConfig``, and beyond it:

    - ``presence_penalty`` is subtracted from the score of every token that occurs in the generated part.
    - ``processors`` are a user's own ``LogitsProcessor`` objects, applied first; ``criteria`` a user's own ``StoppingCriteria``.
    - ``stop``: strings that end the continuation. Its tokens reach to the one that completes the string, its text to before it.
      None is looked for among the first ``min_new_tokens`` tokens.
    - ``max_new_tokens`` takes the place of the number given for all prompts.
    - ``max_time``: seconds after the prompt was taken up at which the continuation ends, with the round that is under way.
    - ``logprobs``: tell the target's log-probability of each token, and of so many of the most likely ones (0: of none).
    - ``samples``: continuations of the prompt, each with random numbers of its own; the prompt is read once.

    Raises:
        OptionError: a value outside of what it accepts.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    min_new_tokens: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    forced_eos: bool = False
    processors: tuple[Any, ...] = ()
    stop: tuple[str, ...] = attrs.field(default=(), converter=several)
    criteria: tuple[Any, ...] = ()
    max_new_tokens: int | None = None
    max_time: float | None = None
    logprobs: int | None = None
    samples: int = 1

    def __attrs_post_init__(self) -> None:
        bounds = {
            "temperature": (0.0, float("inf")),
            "top_k": (0, float("inf")),
            "top_p": (ABOVE_ZERO, 1.0),
            "min_p": (0.0, 1.0),
            "typical_p": (ABOVE_ZERO, 1.0),
            "repetition_penalty": (ABOVE_ZERO, float("inf")),
            "presence_penalty": (-float("inf"), float("inf")),
            "min_new_tokens": (0, float("inf")),
            "max_new_tokens": (1, float("inf")),
            "max_time": (0.0, float("inf")),
            "logprobs": (0, float("inf")),
            "samples": (1, float("inf")),
        }
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            whole = name in WHOLE
            if value is None and name in OPTIONAL:
                continue
            if (
                isinstance(value, bool)
                or not isinstance(value, int if whole else int | float)
                or not least <= value <= most
            ):
                kind = "whole number" if whole else "number"
                raise OptionError(f"{name}: expected a {kind} {bound(least, most)}, got {value!r}")
        if not isinstance(self.stop, tuple | list) or not all(isinstance(one, str) and one for one in self.stop):
            raise OptionError(f"stop: expected a text or several, none of them empty, got {self.stop!r}")

    @classmethod
    def parameters(cls) -> list[str]:
        """Return the names of what can be written down: everything but objects."""
        return [field.name for field in attrs.fields(cls) if field.name not in ("processors", "criteria")]

    def with_parameters(self, given: Mapping[str, Any]) -> Sampling:
        """Return these parameters with those given in the place of some.

        Raises:
            OptionError: an unknown name, or a value outside of what it accepts.
        """
        for name in given:
            if name not in self.parameters():
                raise UnknownNameError("sampling parameter", name, self.parameters())
        return attrs.evolve(self, **{name: frozen(value) for name, value in given.items()})

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0

    def plan(self, prompt_length: int, limit: int, stop_token_ids: Rows[int], device: torch.device | str) -> Plan:
        """Return what the logits of one request go through, in the order transformers applies it.

        Args:
            prompt_length: tokens of the prompt.
            limit: length at which the sequence ends, prompt included.
            stop_token_ids: ids that end it.
            device: where the logits are.
        """
        stops, device = list(stop_token_ids), str(device)
        made: list[Any] = list(self.processors)
        if self.repetition_penalty != 1:
            made.append(hf.RepetitionPenaltyLogitsProcessor(self.repetition_penalty))
        if self.presence_penalty:
            made.append(PresencePenalty(self.presence_penalty, prompt_length))
        if self.bad_words_ids:
            made.append(hf.NoBadWordsLogitsProcessor([list(word) for word in self.bad_words_ids], stops or None))
        if self.min_new_tokens and stops:
            made.append(hf.MinNewTokensLengthLogitsProcessor(prompt_length, self.min_new_tokens, stops, device=device))
        if self.forced_eos and stops:
            made.append(hf.ForcedEOSTokenLogitsProcessor(limit, stops, device=device))
        if self.suppress_tokens:
            made.append(hf.SuppressTokensLogitsProcessor(list(self.suppress_tokens), device=device))
        return Plan.split([*made, *self._warpers], self.greedy)

    @functools.cached_property
    def _warpers(self) -> list[Any]:
        if self.greedy:
            return []
        made: list[Any] = [] if self.temperature == 1 else [hf.TemperatureLogitsWarper(float(self.temperature))]
        if self.top_k:
            made.append(hf.TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            made.append(hf.TopPLogitsWarper(self.top_p))
        if self.min_p > 0:
            made.append(hf.MinPLogitsWarper(self.min_p))
        if self.typical_p < 1:
            made.append(hf.TypicalLogitsWarper(self.typical_p))
        return made


def bound(least: float, most: float) -> str:
    """Return what a number has to be, in words."""
    if least == ABOVE_ZERO:
        return "above 0" if most == float("inf") else f"above 0 and at most {most:g}"
    return f"of at least {least:g}" if most == float("inf") else f"from {least:g} to {most:g}"


def frozen(value: Any) -> Any:
    """Return lists as tuples, however deep."""
    return tuple(map(frozen, value)) if isinstance(value, list) else value


class PresencePenalty(hf.LogitsProcessor):
    """Subtracts a constant from the score of every token that was generated before."""

    def __init__(self, penalty: float, prompt_length: int) -> None:
        self._penalty, self._prompt_length = penalty, prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        """Return the penalised scores."""
        seen = torch.zeros_like(scores).scatter_(1, input_ids[:, self._prompt_length :], self._penalty)
        return scores - seen


def shape(batch: Batch, drafted_BK: torch.Tensor, logits_BTV: torch.Tensor) -> torch.Tensor:
    """Return logits shaped by each row's plan, float32 when anything is done to them.

    Args:
        batch: the rows.
        drafted_BK: the draft tokens that follow the rows' own.
        logits_BTV: logits of the T last positions, T at most K + 1: the last follows all of ``drafted_BK``.
    """
    plans = [sequence.request.plan for sequence in batch.sequences]
    if not any(plan.prefixed or plan.positionwise for plan in plans):
        return logits_BTV
    shaped = logits_BTV.float().clone()
    for row, plan in enumerate(plans):
        if plan.prefixed:
            _shape_by_prefix(plan, batch.tokens_BS[row, : batch.lengths[row]], drafted_BK[row], shaped[row])
    for processors, rows in _sharing(plans):
        shaped[rows] = _apply(processors, batch.tokens_BS[rows], shaped[rows])
    return shaped


def sharpen(batch: Batch, scores_BTV: torch.Tensor) -> torch.Tensor:
    """Return scores in which rows decoded greedily have all their mass on the most likely token.

    Rules that compare probabilities, or add noise, need it to decode such rows greedily.
    """
    greedy = [sequence.request.plan.greedy for sequence in batch.sequences]
    if not any(greedy):
        return scores_BTV
    greedy_B11 = torch.tensor(greedy, device=scores_BTV.device)[:, None, None]
    scores_BTV = scores_BTV.float()
    peaks = torch.full_like(scores_BTV, float("-inf")).scatter_(-1, scores_BTV.argmax(-1, keepdim=True), 0.0)
    return torch.where(greedy_B11, peaks, scores_BTV)


def _shape_by_prefix(plan: Plan, tokens_L: torch.Tensor, drafted_K: torch.Tensor, logits_TV: torch.Tensor) -> None:
    """Apply one row's prefixed processors in place, position by position."""
    prefix = torch.cat([tokens_L.new_tensor(plan.lead), tokens_L, drafted_K])
    for place in range(len(logits_TV)):
        end = len(prefix) - (len(logits_TV) - 1 - place)
        for processor in plan.prefixed:
            logits_TV[place] = processor(prefix[None, :end], logits_TV[place][None])[0]


def _sharing(plans: Rows[Plan]) -> list[tuple[tuple[Any, ...], list[int]]]:
    """Return each distinct chain of position-wise processors with the rows that share it."""
    chains: dict[tuple[int, ...], tuple[tuple[Any, ...], list[int]]] = {}
    for row, plan in enumerate(plans):
        if plan.positionwise:
            key = tuple(map(id, plan.positionwise))
            chains.setdefault(key, (plan.positionwise, []))[1].append(row)
    return list(chains.values())


def _apply(processors: Rows[Any], tokens_BS: torch.Tensor, logits_BTV: torch.Tensor) -> torch.Tensor:
    """Put all positions of all rows through processors that look at one position alone."""
    flat = logits_BTV.flatten(0, 1)
    ids = tokens_BS[:, :1].repeat_interleave(logits_BTV.shape[1], dim=0)
    for processor in processors:
        flat = processor(ids, flat)
    return flat.view_as(logits_BTV)
