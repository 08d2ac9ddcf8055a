"""Compose models and strategies, and decode prompts."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING, Any

import attrs

from specframe.contracts.drafts import RoundReport
from specframe.contracts.requests import Chunk, Request, Result
from specframe.contracts.roles import Drafter, Observer
from specframe.contracts.round import Sequence
from specframe.engine.arrivals import checked_arrivals
from specframe.engine.guard import guarded, installed_observers
from specframe.engine.pool import Pool
from specframe.engine.requests import Intake, Prompt, listed
from specframe.engine.retry import rounds
from specframe.errors import OptionError, SpecframeWarning, shown
from specframe.forward.evaluating import evaluating
from specframe.forward.graphs import RECORDINGS
from specframe.forward.run import Run
from specframe.forward.runner import ModelRunner
from specframe.models import loading as models
from specframe.models.pairs import choose
from specframe.models.vocabulary import fitting_drafter
from specframe.observe.counts import Counts, RunReport, run_report
from specframe.observe.logprobs import Logprobs
from specframe.observe.stopwatch import Stopwatch
from specframe.observe.watch import Watch
from specframe.plugins import arguments
from specframe.plugins.arguments import one_of, seconds
from specframe.plugins.compose import SAMPLING_RULE, Composition, compose
from specframe.plugins.registry import registry
from specframe.probes.invariants import Checks
from specframe.text.generation import Settings, not_done, of_checkpoint
from specframe.text.sampling import Sampling
from specframe.text.stopping import stop_strings
from specframe.text.streaming import TextStream, text_before
from specframe.text.trial import warn_of_unfit
from specframe.values import LARGEST_SEED, entries, flag, whole

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


UNDECIDED = "processors: expected scores of which one is the highest, got nan, or minus infinity for every token, from a processor"
"""Why a sequence ends after whose last token none can be chosen."""


class Pipeline:
    """Batched speculative decoding with one strategy per role.

    Args:
        target: the model whose output is wanted: an alias, a directory, a hub id or a loaded model. None: the target that
            ``drafter`` drafts for, or else the embedded ``tiny``.
        drafter: a draft model (as ``target``), or a drafter's name with options (``name,key=value``), or an object; None or
            "none" for plain decoding. "auto": the model that drafts for ``target``.
        align, schedule, accept, verify, kv: strategies by name, ``name,key=value`` or as objects. ``schedule`` and ``kv``
            None: what the alignment asks for. ``accept`` "auto": greedy, and
            :data:`specframe.plugins.compose.SAMPLING_RULE` for runs in which a temperature is above 0.
        batch_size: rows decoded together.
        draft_length: tokens drafted per round, or a draft-length policy's name. "auto": the policy
            ``goodput``, but 5 under rules whose tokens depend on what is drafted, so that a seed gives the same tokens again.
        device, dtype: where and in what precision models are loaded; a loaded model stays as it is. Of a PEFT model with
            adapters in its layers, or one that torch.compile returned, the transformers model inside is used.
        seed: of every random choice.
        tokenizer: for prompts given as text when the target is a loaded model.
        observers: objects told about every round, see :class:`specframe.contracts.roles.Observer`.
        check: verify the invariants of :mod:`specframe.probes.invariants` all along; slow.
        attention: an attention backend: "packed" (variable-length flash attention without masks), "flex" (FlexAttention, by
            blocks), "masked", one of a plugin, or "auto": packed on CUDA where it fits, flex there where masks would be large,
            masked otherwise, and a plugin's where the KV backend keeps pages.
        graphs: record forwards as CUDA graphs: "on", "off", or "auto": where there is CUDA. "on" without CUDA fills the same
            buffers and records nothing.
        layers: "compiled" runs the models' decoder layers through torch.compile: half a minute at first, and a share less of
            every forward; "eager" runs them as they are; "auto" compiles small layers on a CPU once a pipeline has run for so long
            that it would have paid: some 10,000 forwards of ten layers.

    Raises:
        SpecframeError: one sentence on what cannot be found, loaded or combined.
    """

    def __init__(
        self,
        target: str | PreTrainedModel | None = None,
        drafter: str | PreTrainedModel | Drafter | None = "auto",
        align: Any = "ragged",
        schedule: Any = None,
        accept: Any = "auto",
        verify: Any = "chain",
        kv: Any = None,
        batch_size: int = 8,
        draft_length: Any = "auto",
        device: str = "auto",
        dtype: str = "auto",
        seed: int = 0,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        observers: Iterable[Observer] = (),
        check: bool = False,
        attention: Any = "auto",
        graphs: str = "auto",
        layers: str = "eager",
        generation_config: str | None = "auto",
    ) -> None:
        self.batch_size = whole("batch_size", batch_size, 1)
        self.seed = whole("seed", seed, 0, LARGEST_SEED)
        self._observers, self._check = arguments.observers(observers), flag("check", check)
        arguments.tokenizer(tokenizer)
        self._graphs = one_of("graphs", graphs, tuple(RECORDINGS))
        self._layers = one_of("layers", layers, ("eager", "compiled", "auto"))
        settings = "none" if generation_config is None else generation_config
        self._configured = one_of("generation_config", settings, ("auto", "none")) == "auto"
        self._length_auto = isinstance(draft_length, str) and draft_length == "auto"
        self._accept_auto = isinstance(accept, str) and accept == "auto"
        target, drafting, draft_name = choose(models.unwrapped(target, "target"), models.unwrapped(drafter, "draft"))
        self.composition = compose(
            registry(),
            drafter=drafting,
            verify=verify,
            accept=accept,
            align=align,
            schedule=schedule,
            kv=kv,
            draft_length=draft_length,
            attention=attention,
        )
        on = models.pick_device(device)
        precision = models.pick_dtype(dtype, on)
        self.target_model: PreTrainedModel = models.load_model(target, "target", on, precision)
        self.tokenizer = models.load_tokenizer(target) if tokenizer is None else tokenizer
        self.draft_model: PreTrainedModel | None = None
        self._draft_tokenizer: PreTrainedTokenizerBase | None = None
        self._draft_context: int | None = None
        """Of a draft model that drafts token for token, where it has one."""
        if draft_name is not None:
            self.draft_model = models.load_model(draft_name, "draft", on, precision)
            self._draft_tokenizer = models.load_tokenizer(draft_name)
            fitting = fitting_drafter(self.target_model, self.draft_model, self.tokenizer, self._draft_tokenizer)
            if fitting != drafting:
                self.composition = attrs.evolve(self.composition, drafter=registry().make("drafter", fitting))
            else:
                config = self.draft_model.config.get_text_config()
                self._draft_context = getattr(config, "max_position_embeddings", None)
        self._runner = ModelRunner(self.target_model, "target")
        if (longest := self.composition.policy.maximum.nodes) >= self._runner.context:
            raise OptionError(
                f"draft_length: expected fewer tokens than the target's context of {self._runner.context}, got {longest}"
            )
        stops = models.stop_token_ids(self.target_model, self.tokenizer)
        self._intake = Intake(self._runner, self.tokenizer, stops)
        self._meters: tuple[Counts, Stopwatch] = (Counts(), Stopwatch(self._runner.device))
        self._logprobs = Logprobs()
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
        sampling: Sampling | Iterable[Sampling] | None = None,
    ) -> Iterator[Result]:
        """Decode prompts and yield their results in the order asked, several samples of one prompt one after the other.

        Args:
            prompts: strings, or lists of token ids.
            max_new_tokens: tokens generated per prompt unless it stops before.
            arrivals: seconds after the start at which each prompt may first be seen; None: all are there from the start.
            sort: take up the shortest prompts first, among those that arrive together.
            sampling: how tokens are chosen, when continuations end and what is told of them, for all prompts or one for each; None:
                what the generation config says. Each prompt has random numbers of its own, by its index.

        Raises:
            OptionError: a value outside of what an argument accepts, or a temperature that the acceptance rule ignores. A prompt
                that cannot be decoded is none: its result has ``finish_reason`` "error", and the others go on.
        """
        requests, failed = self._ask(prompts, max_new_tokens, arrivals, sort, sampling)
        keys = sorted([(result.index, result.sample) for result in failed] + [request.key for request in requests])
        return in_order(self.decode(requests, failed), keys)

    def as_completed(
        self,
        prompts: Iterable[Prompt],
        max_new_tokens: int = 64,
        *,
        arrivals: Iterable[float] | None = None,
        sort: bool = False,
        sampling: Sampling | Iterable[Sampling] | None = None,
    ) -> Iterator[Result]:
        """Decode prompts and yield each result when it is complete; ``result.index`` tells which prompt it answers."""
        return self.decode(*self._ask(prompts, max_new_tokens, arrivals, sort, sampling))

    def stream(
        self,
        prompts: Iterable[Prompt],
        max_new_tokens: int = 64,
        *,
        arrivals: Iterable[float] | None = None,
        sort: bool = False,
        sampling: Sampling | Iterable[Sampling] | None = None,
    ) -> Iterator[Chunk]:
        """Decode prompts and yield what every round adds to each, the last chunk of each with its result."""
        requests, failed = self._ask(prompts, max_new_tokens, arrivals, sort, sampling)
        return self._stream(requests, failed)

    def decode(
        self, requests: Rows[Request], failed: Rows[Result] = (), observers: Iterable[Observer] = ()
    ) -> Iterator[Result]:
        """Decode requests, which may differ in everything, and yield each result when it is complete.

        Args:
            requests: what :meth:`generate` makes of prompts.
            failed: results of prompts that cannot be decoded: they come first.
            observers: told about this run beside those of the pipeline.
        """
        failed = [*failed, *self._runner.rope.crossing(requests)]
        with self._begun(failed):
            yield from failed
            for report in self._rounds(requests, observers):
                for sequence in report.finished:
                    yield self._result(sequence)

    def _stream(self, requests: Rows[Request], failed: Rows[Result]) -> Iterator[Chunk]:
        texts: dict[tuple[int, int], TextStream] = {}
        failed = [*failed, *self._runner.rope.crossing(requests)]
        with self._begun(failed):
            for result in failed:
                yield Chunk(result.index, result.sample, "", [], result)
            for report in self._rounds(requests):
                _, tokens = report.verdict.host()
                for row, sequence in enumerate(report.sequences):
                    key, ids = sequence.request.key, tokens[row, : report.gained[row]].tolist()
                    if key not in texts:
                        texts[key] = TextStream(self.tokenizer, stop_strings(sequence.request.stop_checks))
                    piece = texts[key].put(ids, sequence.finished)
                    yield Chunk(*key, piece, ids, self._result(sequence) if sequence.finished else None)

    def _ask(
        self,
        prompts: Iterable[Prompt],
        max_new_tokens: int,
        arrivals: Iterable[float] | None,
        sort: bool,
        sampling: Sampling | Iterable[Sampling] | None,
    ) -> tuple[list[Request], list[Result]]:
        """Return a request per continuation asked for, and the results of the prompts that cannot be decoded."""
        whole("max_new_tokens", max_new_tokens, 1)
        prompts = listed(prompts)
        moments = [0.0] * len(prompts) if arrivals is None else checked_arrivals(seconds(arrivals), len(prompts))
        if ignored := not_done(self._generation_config):
            warnings.warn(
                f"the generation config asks for {ignored}: not honoured here", SpecframeWarning, stacklevel=3
            )
        settings = self.settings(sampling, len(prompts), max_new_tokens)
        requests, failed = self._intake.take(prompts, max_new_tokens, moments, settings)
        if requests:
            asked = one_each(sampling, len(prompts))
            warn_of_unfit(asked, requests[0].prompt_ids, self._runner.vocabulary, self._runner.device)
        if flag("sort", sort):
            requests.sort(key=lambda request: len(request.prompt_ids))
        return requests, failed

    def settings(
        self, sampling: Sampling | Iterable[Sampling] | None, count: int, max_new_tokens: int
    ) -> list[Settings | OptionError]:
        """Return how each of ``count`` prompts is decoded: as its sampling parameters say, and else as the generation config does.

        Where some cannot be decoded as asked, their error takes the place; where none can, it is raised.
        """
        checkpoint = of_checkpoint(self._generation_config, draws=self._draws)
        samplings = one_each(sampling, count)
        made = {id(one): self._checked(Settings(one, checkpoint), max_new_tokens) for one in samplings}
        if made and (faults := [one for one in made.values() if isinstance(one, OptionError)]) == list(made.values()):
            raise faults[0]
        return [made[id(one)] for one in samplings]

    @property
    def _generation_config(self) -> Any:
        """The generation config that holds where nothing else is said; None: there is none."""
        return getattr(self.target_model, "generation_config", None) if self._configured else None

    @property
    def _draws(self) -> bool:
        """Whether tokens may be drawn: the acceptance rule is free, or is one that goes by a distribution."""
        return self._accept_auto or "samples" in self.composition.rule.offers

    def require_sampling(self, asked: str) -> None:
        """Raise :class:`OptionError` when the acceptance rule always takes the most likely token, whatever ``asked`` says."""
        if not self._draws:
            raise OptionError(
                f"{asked} has no effect on an acceptance rule that always takes the most likely "
                "token: choose a rule that samples, such as gumbel, block or rejection"
            )

    def _checked(self, settings: Settings, max_new_tokens: int) -> Settings | OptionError:
        try:
            if settings.temperature:
                self.require_sampling(f"temperature {shown(settings.temperature)}")
            return settings.check(max_new_tokens, self._runner.vocabulary)
        except OptionError as fault:
            return fault

    @contextlib.contextmanager
    def _begun(self, failed: Rows[Result]) -> Iterator[None]:
        """Claim the pipeline for one run, start its figures afresh, and evaluate its models until the run has ended."""
        if self._busy:
            raise OptionError("this pipeline is still decoding other prompts: finish those, or make another pipeline")
        self._busy = True
        try:
            self._meters = Counts(), Stopwatch(self._runner.device)
            self._logprobs = Logprobs()
            self._errors, self._kv_bytes = len(failed), 0
            with evaluating(self.target_model, self.draft_model):
                yield
        finally:
            self._busy = False

    def encode(self, prompt: Prompt) -> list[int]:
        """Return a prompt's token ids; raise :class:`PromptError` when it cannot be decoded."""
        return self._intake.encode(prompt)

    def _rounds(self, requests: Rows[Request], observers: Iterable[Observer] = ()) -> Iterator[RoundReport]:
        """Decode requests, those together that the target can decode together, and yield a report of every round."""
        for group in self._runner.rope.groups(requests):
            yield from self._rounds_of(group, observers)

    def _rounds_of(self, requests: Rows[Request], observers: Iterable[Observer]) -> Iterator[RoundReport]:
        """Decode the requests of one group and yield a report of every round."""
        if not requests:
            return
        checks = [Checks()] if self._check else []
        own = [*self._meters, self._logprobs]
        watch = Watch([*own, *self._observers, *installed_observers(registry()), *observers, *checks])
        use = guarded(self.composition_for(all(request.plan.greedy for request in requests)))
        if self._check:
            use = checks[0].around(use)
        longest = max(min(len(r.prompt_ids) + r.max_new_tokens, self._runner.context) for r in requests)
        self._warn_of_short_draft(longest)
        capacity = longest + use.policy.maximum.nodes + 1
        pool = Pool(requests, 0, capacity, self._runner.context, self._runner.device, clock=self._meters[1])
        start = checks[0].run if self._check else Run

        def open_run(rows: int) -> Run:
            return start(
                self._runner,
                use.alignment,
                use.rule,
                use.kv,
                rows,
                capacity,
                watch,
                seed=self.seed,
                draft_model=self.draft_model,
                target_tokenizer=self.tokenizer,
                draft_tokenizer=self._draft_tokenizer,
                attention=use.attention or "auto",
                graphs=self._graphs,
                layers=self._layers,
            )

        for run, report in rounds(use, pool, open_run, self.batch_size, watch):
            if report.finished:
                self._kv_bytes = max(self._kv_bytes, run.kv_bytes)
            yield report

    def _warn_of_short_draft(self, longest: int) -> None:
        """Say that a draft model drafts badly beyond its context, where sequences of ``longest`` tokens come there."""
        if self._draft_context is not None and longest > self._draft_context:
            warnings.warn(
                f"the draft model's context of {self._draft_context} tokens is shorter than sequences of up to {longest}: beyond "
                "it little of what is drafted stands; the tokens are the target's all the same",
                SpecframeWarning,
                stacklevel=2,
            )

    def composition_for(self, greedy: bool) -> Composition:
        """Return the strategies of a run that decodes greedily, or of one that samples."""
        if greedy or not self._accept_auto:
            return self.composition
        return self.composition.ruled(registry(), SAMPLING_RULE, self._length_auto)

    def _result(self, sequence: Sequence) -> Result:
        request = sequence.request
        assert sequence.finish_reason is not None
        error = UNDECIDED if sequence.finish_reason == "error" else None
        self._errors += error is not None
        logprobs, top_logprobs = self._logprobs.take(sequence)
        return Result(
            request.index,
            text_before(self.tokenizer, sequence.token_ids, stop_strings(request.stop_checks)),
            sequence.token_ids,
            sequence.finish_reason,
            sequence.metrics,
            error,
            prompt_tokens=len(request.prompt_ids),
            latency=self._meters[1].now - request.arrival,
            sample=request.sample,
            logprobs=logprobs,
            top_logprobs=top_logprobs,
        )


def in_order(completed: Iterator[Result], keys: Iterable[tuple[int, int]]) -> Iterator[Result]:
    """Yield results in the order of ``keys`` (index, sample), each as soon as all before it have been."""
    waiting: dict[tuple[int, int], Result] = {}
    following = iter(keys)
    wanted = next(following, None)
    for result in completed:
        waiting[result.index, result.sample] = result
        while wanted in waiting:
            yield waiting.pop(wanted)
            wanted = next(following, None)


def one_each(given: Any, count: int) -> list[Sampling]:
    """Return the sampling parameters of each of ``count`` prompts."""
    if given is None or isinstance(given, Sampling):
        return [given or Sampling()] * count
    samplings = entries(given) or []
    if isinstance(given, Mapping | str) or not all(isinstance(one, Sampling) for one in samplings):
        samplings = []
    if isinstance(given, Mapping | str) or len(samplings) != count:
        got = len(samplings) if samplings else shown(given)
        raise OptionError(f"sampling: expected one for all or one for each of {count} prompts, got {got}")
    return samplings
