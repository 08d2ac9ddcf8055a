"""Decode prompts: a client of an engine."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING, Any, Unpack

import attrs

from specframe.contracts.engine import Engine
from specframe.contracts.requests import Chunk, Request, Result
from specframe.contracts.roles import Drafter, Observer
from specframe.engine.encoding import Prompt, as_list
from specframe.engine.guards.guard_table import guard
from specframe.engine.parts import Parts, check_strategies, parts_of
from specframe.engine.request_factory import RequestFactory, RequestOptions
from specframe.engine.request_stream import RequestStream
from specframe.engine.result_factory import ResultFactory, in_order
from specframe.engine.stream_chunks import Chunks
from specframe.errors import OptionError, literal
from specframe.models.loading import pick_device
from specframe.observe.counts import RunReport
from specframe.plugins.compose import Composition, strategy
from specframe.plugins.recipe import DEFAULTS, MAX_NEW_TOKENS, Recipe
from specframe.plugins.registry import registry
from specframe.text.chat import as_chat, require_template
from specframe.text.sampling import Sampling
from specframe.value_checks import flag, whole

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Pipeline:
    """Batched speculative decoding with one strategy per role.

    Args:
        target: the model whose output is wanted: an alias, a directory, a hub id or a loaded model. "auto": the target that
            ``drafter`` drafts for, or else the default of a plugin.
        drafter: a draft model (as ``target``), or a drafter's name with options (``name,key=value``), or an object; None or
            "none" for plain decoding. "auto": the model that drafts for ``target``.
        align, schedule, accept, verify, kv: strategies by name, ``name,key=value`` or as objects. "auto": the default that a plugin
            registers; that of ``accept`` depends on whether a temperature is above 0. ``schedule`` and ``kv`` None: what the
            alignment asks for.
        batch_size: rows decoded together.
        draft_length: tokens drafted per round, or a draft-length policy's name. "auto": the adaptive
            policy that a plugin registers, but 5 under rules whose tokens depend on what is drafted, so that a seed gives the same
            tokens again.
        device, dtype: where and in what precision models are loaded; a loaded model stays as it is. Of a PEFT model with
            adapters in its layers, or one that torch.compile returned, the transformers model inside is used.
        seed: of every random choice.
        tokenizer: for prompts given as text when the target is a loaded model.
        observers: objects that receive every round, see :class:`specframe.contracts.roles.Observer`.
        check: verify the invariants of :mod:`specframe_testing.instrumentation.invariants` all along; slow.
        attention: an attention backend by name, or "auto": on CUDA one that needs no masks where it fits, one by blocks where masks
            would be large, mask tensors otherwise, and a plugin's where the KV backend keeps pages.
        graphs: record forwards as CUDA graphs: "on", "off", or "auto": where there is CUDA. "on" without CUDA fills the same
            buffers and records nothing.
        layers: "eager" calls the models' modules. "traced" runs what they compute as straight code, traced before the first
            round in a quarter of a second a layer. "compiled" has Inductor compile that code: half a minute at first, and a share
            less of every forward, a third on a GPU. "auto" takes the modules; on a CPU it traces after 2,000 forwards, and compiles
            small layers after 5,000, in another process; what an earlier one has compiled it takes at once.
        generation_config: "auto": the target's generation config holds where nothing else is asked for; "none": it does not.
        executor: the executor, which decides where the models run, by name or as an object: "workers,count=2" decodes in two
            processes.
        bitwise: compute logits that are the same to the bit whatever the batch, the draft and the length of the cache, in any
            precision; slower. Without it this holds up to rounding.
        load_options: a quantisation that target and draft model are loaded with where they are given by name, and options of
            ``from_pretrained``: "torchao-int8-weight-only", "bitsandbytes-4bit,bnb-4bit-quant-type=nf4", "none,variant=fp16", or a
            mapping such as ``{"quantization_config": made}``. A head stays as it is. See :mod:`specframe_std.load_options`.
        constraint: what all continuations have to keep to: a constraint by name, ``name,key=value`` or as an object, or None for
            nothing.
        memory: the most bytes that weights, caches and everything else take together while prompts are decoded, as "22GB" or
            "512MiB": drafts become shorter, then rows fewer, then nothing is drafted. None: no bound. See docs/memory.md.
        rounds: "deferred" launches a round before the host has read the one before it, where all strategies offer that;
            "synchronous" reads each first; "auto" defers on a device that works while the host goes on. See docs/speed.md.

    Raises:
        SpecframeError: one sentence on what cannot be found, loaded or combined.
    """

    def __init__(
        self,
        target: str | PreTrainedModel = DEFAULTS.target,
        drafter: str | PreTrainedModel | Drafter | None = DEFAULTS.drafter,
        align: Any = DEFAULTS.align,
        schedule: Any = DEFAULTS.schedule,
        accept: Any = DEFAULTS.accept,
        verify: Any = DEFAULTS.verify,
        kv: Any = DEFAULTS.kv,
        batch_size: int = DEFAULTS.batch_size,
        draft_length: Any = DEFAULTS.draft_length,
        device: str = DEFAULTS.device,
        dtype: str = DEFAULTS.dtype,
        seed: int = DEFAULTS.seed,
        *,
        tokenizer: PreTrainedTokenizerBase | None = DEFAULTS.tokenizer,
        observers: Iterable[Observer] = DEFAULTS.observers,
        check: bool = DEFAULTS.check,
        attention: Any = DEFAULTS.attention,
        graphs: str = DEFAULTS.graphs,
        layers: str = DEFAULTS.layers,
        generation_config: str | None = DEFAULTS.generation_config,
        executor: Any = DEFAULTS.executor,
        bitwise: bool = DEFAULTS.bitwise,
        load_options: str | Mapping[str, Any] | None = DEFAULTS.load_options,
        constraint: Any = DEFAULTS.constraint,
        memory: str | int | None = DEFAULTS.memory,
        rounds: str = DEFAULTS.rounds,
    ) -> None:
        options = dict(locals())  # each is a field of the recipe
        del options["self"]
        self.recipe = Recipe(**options).checked().named(registry())
        self.batch_size, self.seed = self.recipe.batch_size, self.recipe.seed
        self.executor = guard("executor", strategy(registry(), "executor", self.recipe.executor))
        self._own = self.executor.home(self.recipe) if "remote" in self.executor.offers else self.recipe
        self._engine: Engine | None = None
        self._busy = False
        if "datasets" in self.executor.offers:
            check_strategies(self._own)
        else:
            self.requests = RequestFactory(self.recipe, self.parts)

    @functools.cached_property
    def parts(self) -> Parts:
        """The models and strategies of this process; made at once, but where an executor maps data sets."""
        return parts_of(self._own, self.executor)

    @functools.cached_property
    def requests(self) -> RequestFactory:
        """Makes requests of prompts."""
        return RequestFactory(self.recipe, self.parts)

    @functools.cached_property
    def _results(self) -> ResultFactory:
        return ResultFactory(self.tokenizer, self.parts.runner.device)

    @property
    def device(self) -> torch.device:
        """The device that the models run on; where workers have several, the kind of device."""
        same = self._own.device == self.recipe.device
        return self.parts.runner.device if same else pick_device(self.recipe.device)

    @property
    def target_model(self) -> PreTrainedModel:
        """The model whose output is wanted."""
        return self.parts.target

    @property
    def draft_model(self) -> PreTrainedModel | None:
        """The draft language model, if there is one."""
        return self.parts.draft

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The target's tokenizer, or None if prompts are token ids."""
        return self.parts.tokenizer

    @property
    def composition(self) -> Composition:
        """The strategies of a run without temperatures."""
        return self.parts.composition

    @property
    def report(self) -> RunReport:
        """The figures of the latest run, so far or in all."""
        engine = self._engine
        return self._results.report(engine.peak_kv_bytes, engine.state_bytes) if engine else self._results.report(0, 0)

    def generate(
        self, prompts: Iterable[Prompt], max_new_tokens: int = MAX_NEW_TOKENS, **asked: Unpack[RequestOptions]
    ) -> Iterator[Result]:
        """Decode prompts and yield their results in the order asked, several samples of one prompt one after the other.

        Args:
            prompts: texts, lists of token ids or lists of messages; one of these alone is one prompt.
            max_new_tokens: tokens generated per prompt unless it stops before.
            asked: ``arrivals``, ``sort`` and ``sampling`` of :class:`specframe.engine.request_factory.RequestOptions`, and the
                parameters of :class:`specframe.Sampling` by their names, which win over those of ``sampling``.

        Raises:
            OptionError: a value outside of what an argument accepts, what cannot be a prompt, or a temperature that the acceptance
                rule ignores. A prompt that cannot be decoded is none: its result has ``finish_reason`` "error", the others go on,
                and at the end of the run a warning says how many they were.
            UnknownNameError: an argument that there is not.
            SpecframeError: what a strategy has done wrong, after the results that were complete by then: it is the answer to all
                other prompts.
        """
        requests, failed = self.requests.make(prompts, max_new_tokens, **asked)
        keys = sorted([(result.index, result.sample) for result in failed] + [request.key for request in requests])
        return in_order(self.decode(requests, failed), keys)

    def chat(
        self, chats: Iterable[Prompt], max_new_tokens: int = MAX_NEW_TOKENS, **asked: Unpack[RequestOptions]
    ) -> Iterator[Result]:
        """Answer chats and yield the answers in the order asked, as :meth:`generate` does.

        Args:
            chats: lists of messages, each a mapping with a role and a content; a text is one message of the user. One such list
                alone is one chat. They go through the chat template of the target's tokenizer, up to where the answer begins.
                Token ids are taken as they are.
            max_new_tokens, asked: those of :meth:`generate`.

        Raises:
            OptionError: the target's tokenizer has no chat template, or as :meth:`generate`.
        """
        require_template(self.tokenizer)
        return self.generate([as_chat(one) for one in as_list(chats)], max_new_tokens, **asked)

    def as_completed(
        self, prompts: Iterable[Prompt], max_new_tokens: int = MAX_NEW_TOKENS, **asked: Unpack[RequestOptions]
    ) -> Iterator[Result]:
        """Decode prompts and yield each result when it is complete; ``result.index`` says which prompt it answers."""
        return self.decode(*self.requests.make(prompts, max_new_tokens, **asked))

    def stream(
        self, prompts: Iterable[Prompt], max_new_tokens: int = MAX_NEW_TOKENS, **asked: Unpack[RequestOptions]
    ) -> Iterator[Chunk]:
        """Decode prompts and yield a chunk for each prompt after every round; a prompt's last chunk has its result."""
        return self._stream(*self.requests.make(prompts, max_new_tokens, **asked))

    def map(
        self,
        dataset: Any,
        max_new_tokens: int = MAX_NEW_TOKENS,
        *,
        sampling: Sampling | None = None,
        chat: bool = False,
    ) -> Any:
        """Return a data set with the columns of results after its own; the executor decodes it.

        Args:
            dataset: a data set of a library that the executor knows: with ``executor="ray,workers=8"`` one of Ray.
            max_new_tokens: tokens generated per row unless it stops before.
            sampling: how tokens are chosen, for all rows; a row's own parameters win.
            chat: whether texts go through the chat template of the target's tokenizer.

        Raises:
            OptionError: the executor maps no data sets, or not this one.
        """
        if "datasets" not in self.executor.offers:
            raise OptionError(
                f"map: expected an executor that maps data sets, such as ray of specframe-ray, got {literal(self.recipe.executor)}"
            )
        whole("max_new_tokens", max_new_tokens, 1)
        recipe = attrs.evolve(self.recipe, batch_size=self.batch_size, seed=self.seed)
        return self.executor.map(recipe, dataset, max_new_tokens, sampling or Sampling(), flag("chat", chat))

    def decode(
        self, requests: Rows[Request], failed: Rows[Result] = (), observers: Iterable[Observer] = ()
    ) -> Iterator[Result]:
        """Decode requests, each with its own settings, and yield each result when it is complete.

        Args:
            requests: what :meth:`generate` makes of prompts.
            failed: results of prompts that cannot be decoded: they come first.
            observers: receive this run in addition to those of the pipeline.
        """
        with self._begun(observers) as engine:
            try:
                yield from self._results.taken(engine, requests, failed)
                while not engine.idle:
                    if (report := engine.step()) is not None:
                        yield from map(self._results.of, report.finished)
            finally:
                self._results.warn_of_errors(stacklevel=3)  # who asks for results in order

    def decode_fed(self, asked: Iterable[Rows[Request | Result]]) -> Iterator[Result]:
        """Decode requests that are read while others are decoded, and yield each result when it is complete.

        Neither the requests to come nor those that have finished are held. Results do not depend on that.

        Args:
            asked: the requests of one prompt after the other, see :meth:`specframe.engine.request_factory.RequestFactory.of`.
        """
        with self._begun() as engine:
            for one in self._feed(engine, asked):
                if isinstance(one, Result):
                    yield one
                else:
                    yield from map(self._results.of, one.finished)

    def stream_fed(self, asked: Iterable[Rows[Request | Result]]) -> Iterator[Chunk]:
        """Decode requests as :meth:`decode_fed`, and yield a chunk for each after every round."""
        with self._begun() as engine:
            chunks = Chunks(self._results)
            for one in self._feed(engine, asked):
                if isinstance(one, Result):
                    yield Chunk(one.index, one.sample, "", [], one)
                else:
                    yield from chunks.of(one)

    def _feed(self, engine: Engine, asked: Iterable[Rows[Request | Result]]) -> RequestStream:
        rows = guard("scheduler", self.composition.scheduler).rows(self.batch_size)
        return RequestStream(engine, asked, self._results, rows, self.parts.runner.context)

    def _stream(self, requests: Rows[Request], failed: Rows[Result]) -> Iterator[Chunk]:
        with self._begun() as engine:
            try:
                for result in self._results.taken(engine, requests, failed):
                    yield Chunk(result.index, result.sample, "", [], result)
                chunks = Chunks(self._results)
                while not engine.idle:
                    if (report := engine.step()) is not None:
                        yield from chunks.of(report)
            finally:
                self._results.warn_of_errors(stacklevel=2)

    @contextlib.contextmanager
    def _begun(self, observers: Iterable[Observer] = ()) -> Iterator[Engine]:
        """Claim the pipeline for one run, start its figures afresh, and hold an engine open until the run has ended."""
        if self._busy:
            raise OptionError("this pipeline is still decoding other prompts: finish those, or make another pipeline")
        self._busy = True
        try:
            recipe = attrs.evolve(self.recipe, batch_size=self.batch_size, seed=self.seed)
            results = self._results = ResultFactory(self.tokenizer, self.parts.runner.device)
            watching = [*results.observers, *recipe.observers, *observers]
            self._engine = self.executor.open(recipe, self.parts, watching, results.clock)
            with contextlib.closing(self._engine) as engine:
                yield engine
        finally:
            self._busy = False

    def close(self) -> None:
        """Release the memory that is kept between runs; the pipeline may be used further."""
        if "parts" in vars(self):
            self.parts.stores.clear()

    def weights_changed(self) -> None:
        """Forget what a KV backend has kept of prompts, since a model computes otherwise now.

        Weights, buffers, adapters and hooks are looked at when a run begins, and need no call. What is not seen is what is no
        parameter, buffer or plain setting of a module: weights that were moved to the host or a disk, or code that was changed.

        Raises:
            OptionError: a run is under way, whose rows were begun with the weights as they were.
        """
        if self._busy:
            raise OptionError(
                "weights_changed: expected a pipeline that is idle, got one that is still decoding prompts"
            )
        if "parts" in vars(self):
            self.parts.stores.forget_prompts()

    def encode(self, prompt: Prompt) -> list[int]:
        """Return a prompt's token ids; raise :class:`PromptError` when it cannot be decoded."""
        return self.requests.encode(prompt)
