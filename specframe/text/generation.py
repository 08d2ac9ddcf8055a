"""How a request is decoded: what its :class:`Sampling` says and, where that says nothing, the target's generation config.

Names and meanings are those of transformers' ``GenerationConfig``, and so are the processors and their order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING, Any

import attrs
import torch
from transformers import generation as hf

from specframe.contracts.plan import Plan
from specframe.errors import OptionError, sentence, shown
from specframe.text.sampling import PresencePenalty, Sampling

if TYPE_CHECKING:
    from transformers import GenerationConfig


@attrs.frozen
class Place:
    """What some processors have to know of a request."""

    prompt_length: int
    """Tokens of the prompt."""
    limit: int
    """Length at which the sequence ends, prompt included."""
    stops: list[int]
    """Ids that end it."""
    device: str
    """Where the logits are."""
    begin: int
    """Length at which the first token that may be chosen freely is: the prompt's, or one more where the first is forced."""


COLDEST, STRONGEST = 1e-30, 1e30
"""A temperature below and a penalty beyond these act as they do, and scores in float32 would overflow: to nan, or an error."""

Make = Callable[[Any, Place], Any]

PROCESSORS: Mapping[str, Make] = {
    "sequence_bias": lambda bias, at: hf.SequenceBiasLogitsProcessor(bias),
    "repetition_penalty": lambda penalty, at: hf.RepetitionPenaltyLogitsProcessor(float(penalty)),
    "presence_penalty": lambda penalty, at: PresencePenalty(
        min(max(float(penalty), -STRONGEST), STRONGEST), at.prompt_length
    ),
    "no_repeat_ngram_size": lambda size, at: hf.NoRepeatNGramLogitsProcessor(size),
    "bad_words_ids": lambda words, at: hf.NoBadWordsLogitsProcessor([list(word) for word in words], at.stops or None),
    "min_length": lambda least, at: hf.MinLengthLogitsProcessor(least, at.stops, device=at.device),
    "min_new_tokens": lambda least, at: hf.MinNewTokensLengthLogitsProcessor(
        at.prompt_length, least, at.stops, device=at.device
    ),
    "forced_bos_token_id": lambda token, at: hf.ForcedBOSTokenLogitsProcessor(token),
    "forced_eos_token_id": lambda ids, at: hf.ForcedEOSTokenLogitsProcessor(
        at.limit, at.stops if ids is True else ids, device=at.device
    ),
    "remove_invalid_values": lambda wanted, at: hf.InfNanRemoveLogitsProcessor(),
    "exponential_decay_length_penalty": lambda decay, at: hf.ExponentialDecayLengthPenalty(
        tuple(decay), at.stops, at.prompt_length
    ),
    "suppress_tokens": lambda ids, at: hf.SuppressTokensLogitsProcessor(list(ids), device=at.device),
    "begin_suppress_tokens": lambda ids, at: hf.SuppressTokensAtBeginLogitsProcessor(
        list(ids), at.begin, device=at.device
    ),
}
"""What is done to logits, in the order of ``generate``: the maker of each processor, by the setting that asks for it."""

WARPERS: Mapping[str, Make] = {
    "temperature": lambda value, at: hf.TemperatureLogitsWarper(max(float(value), COLDEST)),
    "top_h": lambda value, at: hf.TopHLogitsWarper(value),
    "top_k": lambda value, at: hf.TopKLogitsWarper(value),
    "top_p": lambda value, at: hf.TopPLogitsWarper(value),
    "min_p": lambda value, at: hf.MinPLogitsWarper(value),
    "typical_p": lambda value, at: hf.TypicalLogitsWarper(value),
    "epsilon_cutoff": lambda value, at: hf.EpsilonLogitsWarper(value),
    "eta_cutoff": lambda value, at: hf.EtaLogitsWarper(value, device=at.device),
}
"""What is done after that, where tokens are drawn."""

MAKERS = {**PROCESSORS, **WARPERS, "renormalize_logits": lambda wanted, at: hf.LogitNormalization()}

PLACED = frozenset(
    {"presence_penalty", "bad_words_ids", "min_length", "min_new_tokens", "forced_eos_token_id"}
    | {"exponential_decay_length_penalty", "begin_suppress_tokens"}
)
"""Settings whose processors are made for one request; those of the others are shared, so that rows can be shaped together."""

FOR_STOPS = frozenset({"min_length", "min_new_tokens", "exponential_decay_length_penalty"})
"""Settings that mean nothing where no id ends a sequence."""

NEUTRAL: Mapping[str, Any] = dict.fromkeys(("repetition_penalty", "temperature", "top_p", "typical_p"), 1)
"""The value of a setting that changes nothing, where it is another than 0, false or nothing."""

ENDS = ("max_time", "stop_strings")
"""Settings that are taken from a generation config beside those of :data:`MAKERS`.

``max_new_tokens`` and ``max_length`` are none: how many tokens are generated is an argument of :meth:`Pipeline.generate`.
"""

SAMPLING_DEFAULTS = {"temperature": 1.0, "top_k": 50}
"""What ``generate`` takes where a generation config with ``do_sample`` does not say."""

ALIASES = {"stop": "stop_strings", "forced_eos": "forced_eos_token_id"}
"""The generation config's names of what :class:`Sampling` calls otherwise."""

NEEDS_TEMPERATURE = ("top_k", "top_p", "min_p", "typical_p")

NOT_DONE: Mapping[str, Any] = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "guidance_scale": 1,
    "encoder_repetition_penalty": 1,
    "encoder_no_repeat_ngram_size": 0,
    "watermarking_config": None,
    "token_healing": False,
}
"""Settings that change the output of ``generate`` and are not honoured, with their values that change nothing."""


def idle(name: str, value: Any) -> bool:
    """Return whether a setting has no effect."""
    return value is None or (value == NEUTRAL[name] if name in NEUTRAL else value in (0, False, (), []))


def of_checkpoint(config: GenerationConfig | None, draws: bool) -> dict[str, Any]:
    """Return the settings of a generation config that are honoured, by name.

    Args:
        config: the target's; None: there are none.
        draws: whether tokens may be drawn; if not, ``do_sample`` counts for nothing.
    """
    if config is None:
        return {}
    named = {name: getattr(config, name, None) for name in (*MAKERS, *ENDS)}
    found = {name: value for name, value in named.items() if value is not None}
    if isinstance(found.get("stop_strings"), str):
        found["stop_strings"] = (found["stop_strings"],)
    if draws and config.do_sample:
        return SAMPLING_DEFAULTS | found
    found.pop("temperature", None)
    return found


def not_done(config: GenerationConfig | None) -> str:
    """Return the settings of a generation config that are not honoured, as text; empty where there are none."""
    asked = {name: getattr(config, name, None) for name in NOT_DONE}
    return told({name: value for name, value in asked.items() if value is not None and value != NOT_DONE[name]})


def told(settings: Mapping[str, Any]) -> str:
    """Return settings as text."""
    return ", ".join(f"{name} {value}" for name, value in settings.items())


@attrs.frozen(eq=False, slots=False)
class Settings:
    """How requests that share a :class:`Sampling` are decoded.

    Args:
        sampling: what was asked for.
        checkpoint: what holds where that says nothing, see :func:`of_checkpoint`.
    """

    sampling: Sampling
    checkpoint: Mapping[str, Any] = attrs.Factory(dict)

    @functools.cached_property
    def given(self) -> dict[str, Any]:
        """What was asked for, by the generation config's names."""
        return {ALIASES.get(name, name): value for name, value in self.sampling.given.items()}

    @functools.cached_property
    def inherited(self) -> dict[str, Any]:
        """What comes from the generation config and has an effect."""
        left = {name: value for name, value in self.checkpoint.items() if name not in self.given}
        if "min_new_tokens" in self.given:
            left.pop("min_length", None)  # the two are one bound, counted with the prompt and without
        if self.greedy:
            left = {name: value for name, value in left.items() if name not in WARPERS}
        kept = {name: value for name, value in left.items() if not idle(name, value)}
        return {"do_sample": True} | kept if self.temperature and "temperature" in left else kept

    @property
    def temperature(self) -> float:
        """The temperature that tokens are drawn at; 0: the most likely ones are taken."""
        return self.given.get("temperature", self.checkpoint.get("temperature", 0.0))

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0

    def __getitem__(self, name: str) -> Any:
        """Return the value of a setting that is not idle; None where it has no effect."""
        value = self.given.get(name, self.inherited.get(name))
        return None if value is None or idle(name, value) else value

    def check(self, max_new_tokens: int, vocabulary: int) -> Settings:
        """Return these settings; raise :class:`OptionError` where a value that was asked for has no effect or no meaning.

        Args:
            max_new_tokens: tokens to generate where the sampling parameters do not say.
            vocabulary: number of token ids.
        """
        asked = [name for name in NEEDS_TEMPERATURE if not idle(name, self.given.get(name))]
        if asked and self.greedy:
            raise OptionError(
                f"{asked[0]}: expected a temperature above 0 with it, got {shown(self.given[asked[0]])} where no token is drawn"
            )
        most = self.sampling.max_new_tokens or max_new_tokens
        if (self.sampling.min_new_tokens or 0) > most:
            raise OptionError(
                f"min_new_tokens: expected at most the {shown(most)} of max_new_tokens, got {shown(self.sampling.min_new_tokens)}"
            )
        for name, words in {
            "bad_words_ids": self.sampling.bad_words_ids or (),
            "suppress_tokens": (self.sampling.suppress_tokens or (),),
        }.items():
            if (largest := max((token for ids in words for token in ids), default=0)) >= vocabulary:
                raise OptionError(f"{name}: expected ids from 0 to {vocabulary - 1}, got {shown(largest)}")
        return self

    def plan(self, prompt_length: int, limit: int, stop_token_ids: Rows[int], device: torch.device | str) -> Plan:
        """Return what the logits of one request go through, in the order transformers applies it.

        Args:
            prompt_length: tokens of the prompt.
            limit: length at which the sequence ends, prompt included.
            stop_token_ids: ids that end it.
            device: where the logits are.

        Raises:
            OptionError: a value that transformers does not take.
        """
        begin = prompt_length + (prompt_length == 1 and self["forced_bos_token_id"] is not None)
        at = Place(prompt_length, limit, list(stop_token_ids), str(device), begin)
        made = [self._made(name, at) for name in MAKERS if self._wanted(name, at)]
        plan = Plan.split([*self.sampling.processors, *made], self.greedy)
        return attrs.evolve(plan, own=bool(self.sampling.processors))

    def _wanted(self, name: str, at: Place) -> bool:
        if name in FOR_STOPS or (name == "forced_eos_token_id" and self[name] is True):
            return bool(at.stops) and self[name] is not None
        return self[name] is not None and not (self.greedy and name in WARPERS)

    def _made(self, name: str, at: Place) -> Any:
        if name in self._shared:
            return self._shared[name]
        try:
            made = MAKERS[name](self[name], at)
        except (TypeError, ValueError) as error:
            origin = "" if name in self.given else " of the generation config"
            raise OptionError(f"{name} {self[name]!r}{origin}: {sentence(error)}") from error
        if name not in PLACED:
            self._shared[name] = made
        return made

    @functools.cached_property
    def _shared(self) -> dict[str, Any]:
        return {}


def inherited(settings: Iterable[Settings]) -> dict[str, Any]:
    """Return what any of some requests has from the generation config."""
    return {name: value for one in settings for name, value in one.inherited.items()}
