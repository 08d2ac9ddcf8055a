"""Compose models and strategies, and decode prompts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from specframe import models
from specframe.arrivals import checked_arrivals
from specframe.checks import Checks
from specframe.compose import compose
from specframe.decode import Strategies, decode
from specframe.errors import ModelError, OptionError, PromptError
from specframe.observers import Counts, RunReport, Stopwatch, run_report
from specframe.plugins import parse_specification, registry
from specframe.pool import Pool
from specframe.protocols import Drafter, Observer
from specframe.run import Run
from specframe.runner import ModelRunner
from specframe.sampling import Sampling
from specframe.types import Request, Result, SequenceMetrics
from specframe.types import Sequence as LiveSequence
from specframe.watch import Watch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Prompt = str | Sequence[int]


class Pipeline:
    """Batched speculative decoding with one strategy per role.

    Args:
        target: the model whose output is wanted: an alias, a directory, a hub id or a loaded model. None: the target that
            ``drafter`` drafts for, or else the embedded ``tiny``.
        drafter: a draft model (as ``target``), or a drafter's name with options (``name,key=value``), or an object; None or
            "none" for plain decoding. "auto": the model that drafts for ``target``.
        align, schedule, accept, verify, kv: strategies by name, ``name,key=value`` or as objects. ``schedule`` and ``kv``
            None: what the alignment asks for.
        batch_size: rows decoded together.
        draft_length: tokens drafted per round, or a draft-length policy's name.
        device, dtype: where and in what precision models are loaded; a loaded model stays as it is.
        seed: of every random choice.
        tokenizer: for prompts given as text when the target is a loaded model.
        observers: objects told about every round, see :class:`specframe.protocols.Observer`.
        check: verify the invariants of :mod:`specframe.checks` all along; slow.

    Raises:
        SpecframeError: one sentence on what cannot be found, loaded or combined.
    """

    def __init__(
        self,
        target: str | PreTrainedModel | None = None,
        drafter: str | PreTrainedModel | Drafter | None = "auto",
        align: Any = "ragged",
        schedule: Any = None,
        accept: Any = "greedy",
        verify: Any = "chain",
        kv: Any = None,
        batch_size: int = 8,
        draft_length: Any = 5,
        device: str = "auto",
        dtype: str = "auto",
        seed: int = 0,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        observers: Iterable[Observer] = (),
        check: bool = False,
    ) -> None:
        self.batch_size = at_least_one("batch_size", batch_size)
        self.seed = seed
        self._observers, self._check = list(observers), check
        target, strategy, draft_name = choose(target, drafter)
        self.composition = compose(
            registry(),
            drafter=strategy,
            verify=verify,
            accept=accept,
            align=align,
            schedule=schedule,
            kv=kv,
            draft_length=draft_length,
        )
        on = models.pick_device(device)
        precision = models.pick_dtype(dtype, on)
        self.target_model: PreTrainedModel = models.load_model(target, "target", on, precision)
        self.tokenizer = tokenizer or models.load_tokenizer(target)
        self.draft_model: PreTrainedModel | None = None
        if draft_name is not None:
            self.draft_model = models.load_model(draft_name, "draft", on, precision)
            draft_tokenizer = models.load_tokenizer(draft_name)
            models.check_vocabularies(self.target_model, self.draft_model, self.tokenizer, draft_tokenizer)
        self._stop_token_ids = models.stop_token_ids(self.target_model, self.tokenizer)
        self._runner = ModelRunner(self.target_model, "target")
        self._meters: tuple[Counts, Stopwatch] = (Counts(), Stopwatch(self._runner.device))
        self._errors = self._kv_bytes = 0
        self._busy = False

    @property
    def report(self) -> RunReport:
        """The figures of the latest run, so far or in all."""
        return run_report(*self._meters, self._errors, self._kv_bytes)

    def generate(
        self,
        prompts: Iterable[Prompt],
        max_new_tokens: int = 64,
        *,
        arrivals: Iterable[float] | None = None,
        sort: bool = False,
        sampling: Sampling | None = None,
    ) -> Iterator[Result]:
        """Decode prompts and yield their results in the order asked.

        Args:
            prompts: strings, or lists of token ids.
            max_new_tokens: tokens generated per prompt unless it stops before.
            arrivals: seconds after the start at which each prompt may first be seen; None: all are there from the start.
            sort: take up the shortest prompts first, among those that arrive together.
            sampling: how tokens are chosen; None: greedily. Each prompt has random numbers of its own, by its index.

        Raises:
            OptionError: a value outside of what an argument accepts, or a temperature that the acceptance rule ignores.
        """
        return in_order(self.as_completed(prompts, max_new_tokens, arrivals=arrivals, sort=sort, sampling=sampling))

    def as_completed(
        self,
        prompts: Iterable[Prompt],
        max_new_tokens: int = 64,
        *,
        arrivals: Iterable[float] | None = None,
        sort: bool = False,
        sampling: Sampling | None = None,
    ) -> Iterator[Result]:
        """Decode prompts and yield each result when it is complete; ``result.index`` tells which prompt it answers."""
        at_least_one("max_new_tokens", max_new_tokens)
        sampling = sampling or Sampling()
        if not (sampling.greedy or self.composition.rule.sharpen):
            raise OptionError(
                f"temperature {sampling.temperature:g} has no effect on an acceptance rule that always takes the most likely "
                "token: choose a rule that samples, such as gumbel, block or rejection"
            )
        prompts = list(prompts)
        moments = [0.0] * len(prompts) if arrivals is None else checked_arrivals(arrivals, len(prompts))
        requests: list[Request] = []
        failed: list[Result] = []
        for index, (prompt, arrival) in enumerate(zip(prompts, moments, strict=True)):
            try:
                ids = self.encode(prompt)
            except PromptError as error:
                failed.append(Result(index, "", [], "error", SequenceMetrics(), error=str(error)))
            else:
                requests.append(self._request(index, ids, max_new_tokens, arrival, sampling))
        if sort:
            requests.sort(key=lambda request: len(request.prompt_ids))
        return self._decode(requests, failed)

    def _request(self, index: int, ids: list[int], new: int, arrival: float, sampling: Sampling) -> Request:
        stops = self._stop_token_ids
        limit = min(len(ids) + new, self._runner.context)
        plan = sampling.plan(len(ids), limit, sorted(stops), self._runner.device)
        return Request(index, ids, new, stops, plan=plan, stream=index, arrival=arrival)

    def _decode(self, requests: list[Request], failed: list[Result]) -> Iterator[Result]:
        if self._busy:
            raise OptionError("this pipeline is still decoding other prompts: finish those, or make another pipeline")
        self._busy = True
        try:
            self._meters = Counts(), Stopwatch(self._runner.device)
            self._errors, self._kv_bytes = len(failed), 0
            yield from failed
            if requests:
                yield from self._run(requests)
        finally:
            self._busy = False

    def encode(self, prompt: Prompt) -> list[int]:
        """Return a prompt's token ids; raise :class:`PromptError` when it cannot be decoded."""
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ModelError(
                    "the target was given as a loaded model without a tokenizer: pass tokenizer=, or prompts as token ids"
                )
            ids = self.tokenizer(prompt).input_ids if prompt.strip() else []
        else:
            ids = [int(token) for token in prompt]
        if not ids:
            raise PromptError("the prompt is empty: expected at least one token")
        if len(ids) >= self._runner.context:
            raise PromptError(
                f"the prompt has {len(ids)} tokens: expected fewer than the target's context of {self._runner.context}"
            )
        if not 0 <= min(ids) <= max(ids) < self._runner.vocabulary:
            outside = next(token for token in ids if not 0 <= token < self._runner.vocabulary)
            raise PromptError(
                f"the prompt holds token id {outside}: expected ids from 0 to {self._runner.vocabulary - 1}"
            )
        return ids

    def _run(self, requests: list[Request]) -> Iterator[Result]:
        checks = Checks() if self._check else None
        watch = Watch([*self._meters, *self._observers, *self._registered_observers(), *([checks] if checks else [])])
        use = checks.around(self.composition) if checks else self.composition
        longest = max(min(len(r.prompt_ids) + r.max_new_tokens, self._runner.context) for r in requests)
        rows = min(use.scheduler.rows(self.batch_size), len(requests))
        capacity = longest + use.policy.maximum + 1
        run = (checks.run if checks else Run)(
            self._runner,
            use.alignment,
            use.rule,
            use.kv,
            rows,
            capacity,
            watch,
            seed=self.seed,
            draft_model=self.draft_model,
        )
        strategies = Strategies(use.drafter, use.verifier, use.rule, use.alignment, use.scheduler, use.policy)
        for role in (use.drafter, use.verifier, use.rule, use.alignment):
            role.start(run)
        pool = Pool(requests, rows, capacity, self._runner.context, self._runner.device, clock=self._meters[1])
        for sequence in decode(pool, strategies, watch):
            self._kv_bytes = max(self._kv_bytes, run.kv_bytes)
            yield self._result(sequence)

    def _registered_observers(self) -> list[Observer]:
        known = registry()
        return [known.make("observer", name) for name in known.names("observer")]

    def _result(self, sequence: LiveSequence) -> Result:
        text = str(self.tokenizer.decode(sequence.token_ids, skip_special_tokens=True)) if self.tokenizer else ""
        request = sequence.request
        assert sequence.finish_reason is not None
        return Result(
            request.index,
            text,
            sequence.token_ids,
            sequence.finish_reason,
            sequence.metrics,
            prompt_tokens=len(request.prompt_ids),
            latency=self._meters[1].now - request.arrival,
        )


def in_order(completed: Iterator[Result]) -> Iterator[Result]:
    """Yield results by index, each as soon as all before it have been."""
    waiting: dict[int, Result] = {}
    following = 0
    for result in completed:
        waiting[result.index] = result
        while following in waiting:
            yield waiting.pop(following)
            following += 1


def choose(target: Any, drafter: Any) -> tuple[Any, Any, Any]:
    """Return the target, the drafter strategy and the draft model (or None) that were meant.

    Raises:
        OptionError: no draft model is known for the target.
    """
    drafters = registry().names("drafter")
    if target is None:
        paired = models.paired_target(drafter) if isinstance(drafter, str) else None
        target = paired or "tiny"
    if drafter is None:
        return target, "none", None
    if drafter == "auto":
        drafter = next((m.alias for m in registry().models.values() if m.target == target), None)
        if drafter is None:
            raise OptionError(
                f"no draft model is known for target {str(target)[:80]!r}: name one as the drafter, or 'none' for plain decoding"
            )
    if isinstance(drafter, str):
        name, _ = parse_specification(drafter)
        return (target, drafter, None) if name in drafters else (target, "model", drafter)
    if isinstance(drafter, torch.nn.Module):
        return target, "model", drafter
    return target, drafter, None


def at_least_one(name: str, value: Any) -> int:
    """Return ``value`` when it is a whole number of at least 1; raise :class:`OptionError` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{name}: expected a whole number of at least 1, got {value!r}")
    return value
