"""Prompts, and what is asked of them, become requests."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Rows
from typing import Any, Unpack

import attrs

from specframe.contracts.requests import Request, Result, SequenceMetrics, StopCheck
from specframe.engine.encoding import Prompt, as_list, encode_prompt, is_ids, require_ids, token_ids
from specframe.engine.engine_clock import checked_arrivals
from specframe.engine.parts import Parts
from specframe.errors import ModelError, OptionError, PromptError, SpecframeWarning, UnknownNameError, literal
from specframe.models.loading import stop_token_ids
from specframe.plugins.compose import able
from specframe.plugins.recipe import MAX_NEW_TOKENS, Recipe, is_auto
from specframe.plugins.registry import registry
from specframe.text.generation import GenerationSettings, not_done, of_checkpoint
from specframe.text.sampling import Sampling, SamplingParameters
from specframe.text.stopping import Criteria, StopStrings
from specframe.value_checks import entries, flag, list_of, number, whole

Samplings = Sampling | Iterable[Sampling] | None
"""Sampling parameters of all prompts, or one for each, or None: those of the generation config."""


class RequestOptions(SamplingParameters, total=False):
    """What is asked for with the prompts, by keyword; the defaults are those of :meth:`RequestFactory.make`."""

    arrivals: Iterable[float] | None
    """Seconds after the start at which each prompt may first be seen, or None if all are there from the start."""
    sort: bool
    """Schedule the shortest prompts first, among those that arrive together."""
    sampling: Samplings
    """How tokens are chosen, when continuations end and what is reported of them, for all prompts or one for each, or None for what
    the generation config says. Each prompt has random numbers of its own, by its index."""


class RequestFactory:
    """Turns prompts, and what is asked of them, into requests, by the options of a run and the parts that they name."""

    def __init__(self, recipe: Recipe, parts: Parts) -> None:
        self._recipe, self._parts = recipe, parts
        self._stops = stop_token_ids(parts.target, parts.tokenizer)

    def make(
        self,
        given: Iterable[Prompt],
        max_new_tokens: int = MAX_NEW_TOKENS,
        *,
        arrivals: Iterable[float] | None = None,
        sort: bool = False,
        sampling: Samplings = None,
        **parameters: Unpack[SamplingParameters],
    ) -> tuple[list[Request], list[Result]]:
        """Return a request per continuation asked for, and the results of the prompts that cannot be decoded.

        The arguments are those of :meth:`specframe.Pipeline.generate`.
        """
        for name in parameters:
            if name not in RequestOptions.__annotations__:
                raise UnknownNameError("argument", name, [*RequestOptions.__annotations__, "max_new_tokens"])
        whole("max_new_tokens", max_new_tokens, 1)
        prompts = as_list(given)
        moments = [0.0] * len(prompts)
        if arrivals is not None:
            seconds = [number("arrivals", moment) for moment in list_of("arrivals", arrivals, "a list of seconds")]
            moments = checked_arrivals(seconds, len(prompts))
        self.warn_of_settings()
        asked = one_each(sampling, len(prompts), parameters)
        requests: list[Request] = []
        failed: list[Result] = []
        for index, how in enumerate(self.settings(asked, max_new_tokens)):
            made = self.of(index, prompts[index], max_new_tokens, how, moments[index])
            requests += [one for one in made if isinstance(one, Request)]
            failed += [one for one in made if isinstance(one, Result)]
        if requests and any(one.processors or one.criteria for one in asked):
            runner, warn_of_unfit = self._parts.runner, registry().entry("option", "processors").factory
            warn_of_unfit(asked, requests[0].prompt_ids, runner.vocabulary, runner.device)
        if flag("sort", sort):
            requests.sort(key=lambda request: len(request.prompt_ids))
        return requests, failed

    def warn_of_settings(self) -> None:
        """Warn of what the generation config asks for and nothing here does."""
        if ignored := not_done(self._generation_config):
            warnings.warn(
                f"the generation config asks for {ignored}: not honoured here", SpecframeWarning, stacklevel=5
            )

    def of(
        self,
        index: int,
        prompt: Prompt,
        max_new_tokens: int,
        how: GenerationSettings | OptionError,
        arrival: float = 0.0,
    ) -> list[Request | Result]:
        """Return the requests of one prompt, one for each sample; of a prompt that cannot be decoded its result.

        Args:
            index: the prompt's number; its random numbers follow from it.
            prompt, max_new_tokens: as :meth:`specframe.Pipeline.generate` has them.
            how: what :meth:`setting` returns of its sampling parameters.
            arrival: seconds after the start at which it may first be seen.
        """
        try:
            if isinstance(how, OptionError):
                raise how
            return [*self._samples(index, self.encode(prompt), max_new_tokens, arrival, how)]
        except (PromptError, OptionError) as error:
            return [Result(index, "", [], "error", SequenceMetrics(), error=str(error))]

    def encode(self, prompt: Prompt) -> list[int]:
        """Return a prompt's token ids; raise :class:`PromptError` when it cannot be decoded."""
        ids = (
            token_ids(prompt)
            if is_ids(prompt)
            else encode_prompt(prompt, self._parts.tokenizer, self._parts.runner.context)
        )
        require_ids(ids, self._parts.runner)
        return ids

    def settings(self, samplings: Rows[Sampling], max_new_tokens: int) -> list[GenerationSettings | OptionError]:
        """Return how each prompt is decoded: as its sampling parameters say, and else as the generation config does.

        Where some cannot be decoded as asked, their error takes the place; where none can, it is raised.
        """
        made = {id(one): self.setting(one, max_new_tokens) for one in samplings}
        if made and (faults := [one for one in made.values() if isinstance(one, OptionError)]) == list(made.values()):
            raise faults[0]
        return [made[id(one)] for one in samplings]

    def setting(self, sampling: Sampling, max_new_tokens: int) -> GenerationSettings | OptionError:
        """Return how a prompt with these parameters is decoded, or why it cannot be."""
        settings = GenerationSettings(sampling, of_checkpoint(self._generation_config, draws=self._draws))
        try:
            if settings.temperature:
                self.require_sampling(f"temperature {literal(settings.temperature)}")
            return settings.check(max_new_tokens, self._parts.runner.vocabulary)
        except OptionError as fault:
            return fault

    def require_sampling(self, asked: str) -> None:
        """Raise :class:`OptionError` when the acceptance rule always takes the most likely token, whatever ``asked`` says."""
        if not self._draws:
            sampling = able(registry(), "acceptance rule", {"samples", "lossless"})
            raise OptionError(
                f"{asked} has no effect on an acceptance rule that always takes the most likely "
                f"token: choose a rule that samples, such as {' or '.join(sampling)}"
            )

    @property
    def _generation_config(self) -> Any:
        """The generation config that holds where nothing else is said, or None if there is none."""
        own = getattr(self._parts.target, "generation_config", None)
        return own if is_auto(self._recipe.generation_config) else None

    @property
    def _draws(self) -> bool:
        """Whether temperatures have an effect: the acceptance rule is open, or is one that depends on a distribution."""
        return is_auto(self._recipe.accept) or "samples" in self._parts.composition.rule.offers

    def _samples(
        self, index: int, ids: list[int], new: int, arrival: float, settings: GenerationSettings
    ) -> list[Request]:
        """Return the requests for all samples of one prompt."""
        stops, sampling = self._stops, settings.sampling
        new = sampling.max_new_tokens or new
        limit = min(len(ids) + new, self._parts.runner.context)
        return [
            Request(
                index,
                ids,
                new,
                stops,
                plan=settings.plan(len(ids), limit, sorted(stops), self._parts.runner.device),
                stream=index + (sample << 32),
                arrival=arrival,
                stop_checks=self._stop_checks(settings),
                max_time=settings["max_time"],
                sample=sample,
                logprobs=sampling.logprobs,
            )
            for sample in range(sampling.samples)
        ]

    def _stop_checks(self, settings: GenerationSettings) -> tuple[StopCheck, ...]:
        checks: list[StopCheck] = []
        if strings := settings["stop_strings"]:
            if self._parts.tokenizer is None:
                raise ModelError(
                    "stop: expected a target with a tokenizer, got a loaded model without one: pass tokenizer="
                )
            checks.append(StopStrings(self._parts.tokenizer, strings, settings["min_new_tokens"] or 0))
        if settings.sampling.criteria:
            checks.append(Criteria(settings.sampling.criteria, device=self._parts.runner.device))
        return tuple(checks)


def one_each(given: Any, count: int, parameters: Mapping[str, Any]) -> list[Sampling]:
    """Return the sampling parameters of each of ``count`` prompts; ``parameters`` win."""
    if given is None or isinstance(given, Sampling):
        return [attrs.evolve(given or Sampling(), **parameters)] * count
    samplings = entries(given) or []
    if isinstance(given, Mapping | str) or not all(isinstance(one, Sampling) for one in samplings):
        samplings = []
    if isinstance(given, Mapping | str) or len(samplings) != count:
        got = len(samplings) if samplings else literal(given)
        raise OptionError(f"sampling: expected one for all or one for each of {count} prompts, got {got}")
    return [attrs.evolve(one, **parameters) for one in samplings] if parameters else samplings
