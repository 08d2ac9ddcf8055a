"""Decoding settings of a request: its :class:`Sampling` and, for each setting left open there, the target's generation config.

Names, meanings, processors and their order are those of transformers' ``GenerationConfig``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING, Any

import attrs
import torch
from transformers import generation as hf

from specframe.contracts.requests import SamplingPlan
from specframe.errors import OptionError, literal, sentence
from specframe.text.processor_formulas import FrequencyPenalty, PresencePenalty, plan_of
from specframe.text.sampling import Sampling

if TYPE_CHECKING:
    from transformers import GenerationConfig


@attrs.frozen
class SettingPlace:
    """Facts about a request that some logits processors need."""

    prompt_length: int
    """Tokens of the prompt."""
    limit: int
    """Length at which the sequence ends, prompt included."""
    stops: list[int]
    """Token ids that end the sequence."""
    device: str
    """Device of the logits."""
    begin: int
    """Length at which the first free choice of a token happens: the prompt's length, plus 1 if the first token is forced."""


COLDEST, STRONGEST = 1e-30, 1e30
"""Lowest temperature and strongest penalty handed to transformers. More extreme values have the same effect, but float32 scores
would overflow to nan."""

Make = Callable[[Any, SettingPlace], Any]


def bounded(penalty: float) -> float:
    """Return a penalty or a bias that float32 scores can take."""
    return min(max(float(penalty), -STRONGEST), STRONGEST)


PROCESSORS: Mapping[str, Make] = {
    "sequence_bias": lambda bias, at: hf.SequenceBiasLogitsProcessor(
        {ids: bounded(value) for ids, value in bias} if isinstance(bias, tuple) else bias  # type: ignore[arg-type]
    ),
    "repetition_penalty": lambda penalty, at: hf.RepetitionPenaltyLogitsProcessor(float(penalty)),
    "presence_penalty": lambda penalty, at: PresencePenalty(bounded(penalty), at.prompt_length),
    "frequency_penalty": lambda penalty, at: FrequencyPenalty(bounded(penalty), at.prompt_length),
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
"""Makers of logits processors, by setting, in the order in which ``generate`` applies them."""

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
"""Makers of the warpers, applied after the processors when tokens are sampled."""

MAKERS = {**PROCESSORS, **WARPERS, "renormalize_logits": lambda wanted, at: hf.LogitNormalization()}

PLACED = frozenset(
    {"presence_penalty", "frequency_penalty", "bad_words_ids", "min_length", "min_new_tokens", "forced_eos_token_id"}
    | {"exponential_decay_length_penalty", "begin_suppress_tokens"}
)
"""Settings that need one processor per request. Processors of other settings are made once."""

FOR_STOPS = frozenset({"min_length", "min_new_tokens", "exponential_decay_length_penalty"})
"""Settings without effect for a request that has no stop ids."""

NEUTRAL: Mapping[str, Any] = dict.fromkeys(("repetition_penalty", "temperature", "top_p", "typical_p"), 1)
"""Neutral values, which change nothing, of settings whose neutral value is not 0, false or None."""

ENDS = ("max_time", "stop_strings")
"""Settings read from a generation config in addition to :data:`MAKERS`.

``max_new_tokens`` and ``max_length`` are not read: the number of tokens is an argument of :meth:`Pipeline.generate`.
"""

SAMPLING_DEFAULTS = {"temperature": 1.0, "top_k": 50}
"""Defaults of ``generate`` for a generation config with ``do_sample`` that leaves these settings open."""

ALIASES = {"stop": "stop_strings", "forced_eos": "forced_eos_token_id"}
"""Names in a generation config of settings that :class:`Sampling` names differently."""

NEEDS_TEMPERATURE = ("top_k", "top_p", "min_p", "typical_p")
"""Settings that have an effect only if tokens are sampled."""

NOT_DONE: Mapping[str, Any] = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "guidance_scale": 1,
    "encoder_repetition_penalty": 1,
    "encoder_no_repeat_ngram_size": 0,
    "watermarking_config": None,
    "token_healing": False,
}
"""Unsupported settings that change the output of ``generate``, with their neutral values."""


def idle(name: str, value: Any) -> bool:
    """Return whether a setting has no effect."""
    return value is None or (value == NEUTRAL[name] if name in NEUTRAL else value in (0, False, (), []))


def of_checkpoint(config: GenerationConfig | None, draws: bool) -> dict[str, Any]:
    """Return the supported settings of a generation config, by name; ``do_sample`` is ignored if no token is drawn."""
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
    """Return the unsupported settings of a generation config as text; empty if there are none."""
    asked = {name: getattr(config, name, None) for name in NOT_DONE}
    return settings_text(
        {name: value for name, value in asked.items() if value is not None and value != NOT_DONE[name]}
    )


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings as text."""
    return ", ".join(f"{name} {value}" for name, value in settings.items())


@attrs.frozen(eq=False, slots=False)
class GenerationSettings:
    """Decoding settings of the requests that share a :class:`Sampling`."""

    sampling: Sampling
    checkpoint: Mapping[str, Any] = attrs.Factory(dict)
    """The generation config's settings, for parameters the user left open, see :func:`of_checkpoint`."""

    @functools.cached_property
    def given(self) -> dict[str, Any]:
        """The user's settings, under the generation config's names."""
        return {ALIASES.get(name, name): value for name, value in self.sampling.given.items()}

    @functools.cached_property
    def inherited(self) -> dict[str, Any]:
        """Settings that come from the generation config and have an effect."""
        left = {name: value for name, value in self.checkpoint.items() if name not in self.given}
        if "min_new_tokens" in self.given:
            left.pop("min_length", None)  # the same bound, but min_length counts the prompt too
        if self.greedy:
            left = {name: value for name, value in left.items() if name not in WARPERS}
        kept = {name: value for name, value in left.items() if not idle(name, value)}
        return {"do_sample": True} | kept if self.temperature and "temperature" in left else kept

    @property
    def temperature(self) -> float:
        """Temperature of sampling, or 0 for greedy decoding."""
        return self.given.get("temperature", self.checkpoint.get("temperature", 0.0))

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0

    def __getitem__(self, name: str) -> Any:
        """Return the value of a setting, or None if the setting has no effect."""
        value = self.given.get(name, self.inherited.get(name))
        return None if value is None or idle(name, value) else value

    def check(self, max_new_tokens: int, vocabulary: int) -> GenerationSettings:
        """Return these settings; raise :class:`OptionError` if a value from the user has no effect or no meaning.

        ``max_new_tokens`` holds if the sampling parameters leave the number open.
        """
        asked = [name for name in NEEDS_TEMPERATURE if not idle(name, self.given.get(name))]
        if asked and self.greedy:
            raise OptionError(
                f"{asked[0]}: expected a temperature above 0 with it, got {literal(self.given[asked[0]])} where no token is drawn"
            )
        most = self.sampling.max_new_tokens or max_new_tokens
        if (self.sampling.min_new_tokens or 0) > most:
            raise OptionError(
                f"min_new_tokens: expected at most the {literal(most)} of max_new_tokens, "
                f"got {literal(self.sampling.min_new_tokens)}"
            )
        if (told := self.sampling.logprobs or 0) > vocabulary:
            raise OptionError(f"logprobs: expected at most {vocabulary}, the target's token ids, got {literal(told)}")
        for name, words in {
            "bad_words_ids": self.sampling.bad_words_ids or (),
            "suppress_tokens": (self.sampling.suppress_tokens or (),),
            "sequence_bias": [ids for ids, _ in self.sampling.sequence_bias or ()],
        }.items():
            if (largest := max((token for ids in words for token in ids), default=0)) >= vocabulary:
                raise OptionError(f"{name}: expected ids from 0 to {vocabulary - 1}, got {literal(largest)}")
        return self

    def plan(
        self, prompt_length: int, limit: int, stop_token_ids: Rows[int], device: torch.device | str
    ) -> SamplingPlan:
        """Return the logits processors of one request, in the order in which transformers applies them.

        The arguments are those of :class:`SettingPlace`.

        Raises:
            OptionError: transformers refuses a value.
        """
        begin = prompt_length + (prompt_length == 1 and self["forced_bos_token_id"] is not None)
        at = SettingPlace(prompt_length, limit, list(stop_token_ids), str(device), begin)
        made = [self._made(name, at) for name in MAKERS if self._wanted(name, at)]
        own = self.sampling.processors
        return plan_of([*own, *made], self.greedy, own=bool(own))

    def _wanted(self, name: str, at: SettingPlace) -> bool:
        if name in FOR_STOPS or (name == "forced_eos_token_id" and self[name] is True):
            return bool(at.stops) and self[name] is not None
        return self[name] is not None and not (self.greedy and name in WARPERS)

    def _made(self, name: str, at: SettingPlace) -> Any:
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
