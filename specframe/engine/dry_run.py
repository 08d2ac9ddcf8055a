"""Decoding without weights and numbers, which tells the memory that a run takes.

The engine itself decodes, with all strategies of the run, on torch's device "meta", where a tensor has a shape and no memory. An
allocation counter adds up what each operator would take. Nothing here has a formula of its own, so a strategy, a store or a model
that is new is counted as it is.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Rows
from typing import Any, Protocol, cast

import attrs
import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from specframe.contracts.cache import BoundedStore, DraftsBackend, KVBackend, KVShape, KVStore
from specframe.contracts.drafts import Budget
from specframe.contracts.engine import Clock, Engine
from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Request
from specframe.contracts.roles import BudgetPolicy
from specframe.contracts.round import Batch
from specframe.contracts.run import Run
from specframe.devices.allocations import KEPT, NOTHING, OTHERS, Allocations, Peak
from specframe.engine.arrivals import HandClock
from specframe.engine.parts import Parts
from specframe.errors import ModelError, sentence
from specframe.forward.runner import ModelRunner
from specframe.models.loading import silent
from specframe.plugins.compose import Composition
from specframe.plugins.recipe import Recipe

META = torch.device("meta")

MANY = 1 << 40
"""So many places that filler is left out where a model can be fed so."""

ROUNDS = 3
"""Rounds that are decoded at the end of sequences: by the third, whatever a round keeps for the next one is there."""

CACHE, VIEWS, STATES, LOGITS, MASKS = "keys and values", "views of the cache", "states", "logits", "masks"
TARGET, DRAFT = "target's weights", "draft model's weights"


PASSING = (OTHERS, KEPT, LOGITS, MASKS, VIEWS)
"""The parts that come and go with forwards."""
FEW, SHARE = 4096, 128
"""What is planned for beyond what was counted: so many bytes, and one for so many that come and go. A run has index tensors that
go by what is accepted, of which a dry run knows nothing."""


@attrs.frozen
class Footprint:
    """The bytes that a run takes at most, in all and by parts."""

    total: int
    parts: Mapping[str, int]
    """The bytes of each part when most are in use. They add up to the total."""
    kv_bytes: int
    """Bytes of all caches, states included: what a run reports as ``peak_kv_bytes``."""


@attrs.frozen
class Workload:
    """Sequences that are decoded at the same time."""

    rows: int
    prompt: int
    """Tokens of each prompt."""
    longest: int
    """Tokens of each sequence at its end, its prompt included."""


def hollow(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model whose weights have shapes and no numbers."""
    memo: dict[int, Any] = {
        id(one): torch.nn.Parameter(torch.empty_like(one, device=META), requires_grad=False)
        for one in model.parameters()
    }
    memo |= {id(one): torch.empty_like(one, device=META) for one in model.buffers()}
    return copy.deepcopy(model, memo)


def hollow_of(config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """Return the model of a configuration without weights.

    Raises:
        ModelError: transformers cannot make the model.
    """
    try:
        with META, silent():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    except Exception as error:  # whatever transformers raises on sizes that do not fit
        raise ModelError(
            f"no model can be made of the configuration of a {config.model_type}: {sentence(error)}"
        ) from error
    return model.eval()


class CountedEngine(Engine, Protocol):
    """An engine of this process."""

    def step(self) -> RoundReport | None:
        """Decode one round and return its report."""

    @property
    def held_bytes(self) -> tuple[int, int]:
        """The bytes that all caches hold now, states included, and those of states alone."""


class Looks:
    """Stands for a rule that ends drafts by the distribution of each token: it takes what such a look does, and ends none."""

    def goes_on(self, batch: Batch, place: int, logits_BV: torch.Tensor) -> np.ndarray:
        """Return that all rows draft a token."""
        logits_BV = logits_BV.float()
        logs_BV = logits_BV - logits_BV.logsumexp(-1, keepdim=True)
        (logs_BV.exp() * logs_BV.clamp(min=-100.0)).sum(-1)  # the entropy
        return np.ones(len(batch), dtype=bool)


class Steady:
    """A draft-length policy that drafts as much as it may, every round.

    Args:
        maximum: so much.
        stopping: a rule that is asked before each token of a chain; None: there is none.
    """

    needs: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()

    def __init__(self, maximum: Budget, stopping: Looks | None) -> None:
        self.maximum, self._stopping = maximum, stopping

    def start(self, run: Run) -> None:
        """Nothing to prepare."""

    def budget(self, batch: Batch) -> Budget:
        """Return the most there may be."""
        return attrs.evolve(self.maximum, stopping=self._stopping)

    def observe(self, report: RoundReport) -> None:
        """Nothing to learn."""


class CountedStore:
    """A store whose allocations are counted as the cache's, but for those of a write: they are what attention reads."""

    def __init__(self, store: KVStore, counter: Allocations, grows: bool) -> None:
        self._store, self._counter = store, counter
        self._written = CACHE if grows else VIEWS

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._store, name)
        if not callable(member):
            return member

        def counted(*given: Any, **named: Any) -> Any:
            with self._counter.part(self._written if name == "write" else CACHE):
                return member(*given, **named)

        return counted


class CountedKV:
    """A KV backend whose stores are counted.

    Args:
        kv: the backend.
        counter: counts.
        beyond: slots of a row that are there for the count alone.
    """

    def __init__(self, kv: KVBackend, counter: Allocations, beyond: int) -> None:
        self._kv, self._counter, self._beyond = kv, counter, beyond
        self.needs, self.offers = kv.needs, kv.offers
        self.most: list[int] = []
        """The most bytes of all stores, and those that they take where they grow; none: as many as were counted."""

    def of_drafts(self, own: KVBackend) -> KVBackend:
        """Return the backend of a draft's cache, counted with this one, where it decides for drafts."""
        inner = own._kv if isinstance(own, CountedKV) else own
        made = CountedKV(cast(DraftsBackend, self._kv).of_drafts(inner), self._counter, self._beyond)
        made.most = self.most
        return cast(KVBackend, made)

    def open(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> KVStore:
        """Return a store."""
        with self._counter.part(CACHE):
            store = self._kv.open(shapes, rows, capacity, device)
        if "bounded" in self._kv.offers:
            of_store = cast(BoundedStore, store).most_bytes(rows, capacity - self._beyond)
            self.most[:] = [sum(both) for both in zip(self.most or (0, 0), of_store, strict=True)]
        return cast(KVStore, CountedStore(store, self._counter, "grow" in self._kv.offers))


class DryRun:
    """Tells the memory of runs of a pair, whatever their rows and lengths.

    Args:
        recipe: the options of the run.
        parts: models without weights, and strategies that no other run uses.
        make: makes an engine of a recipe, parts and a clock.
    """

    def __init__(self, recipe: Recipe, parts: Parts, make: Callable[[Recipe, Parts, Clock], CountedEngine]) -> None:
        self._recipe, self._parts, self._make = recipe, parts, make
        assert isinstance(parts.runner, ModelRunner)
        models: list[Any] = [parts.target] + ([parts.draft] if parts.draft is not None else [])
        self._vocabularies = {int(one.config.get_text_config().vocab_size) for one in models}
        layers = parts.runner.state_layers.values()
        self._states = {tuple(size) for layer in layers for size in layer.shape.sizes}
        self._most = parts.composition.policy.maximum
        self._trials = [self._tried(parts.runner)]
        if parts.draft is not None:
            self._trials.append(self._tried(ModelRunner(parts.draft, "draft")))

    def composed(self, use: Composition) -> DryRun:
        """Return one of the same models with other strategies."""
        made = copy.copy(self)  # models are tried once: what that takes is known
        made._parts = attrs.evolve(self._parts, composition=use)
        made._most = use.policy.maximum
        return made

    def footprint(self, load: Workload, budget: Budget | None = None, like: Rows[Request] = ()) -> Footprint:
        """Return the memory of a run.

        Sequences are read and decoded, then others that are near their ends, where caches and masks are longest. In their place
        prompts are read again: of half of the rows, of all, and of all with unequal lengths.

        Args:
            load: the sequences.
            budget: the most that is drafted; None: what the run's policy drafts at most.
            like: requests that the sequences are like in all but their tokens, in turn; none: greedy ones.

        Raises:
            SpecframeError: the run cannot be decoded at all.
        """
        counter = Allocations(hollow=True, name=self._named)
        use, most = self._parts.composition, self._most if budget is None else budget
        looks = Looks() if "calibration" in use.policy.offers and "stops" in use.drafter.offers else None
        # rows that share memory are all to be live at their ends, whoever would have to wait there
        room = load.longest if "pooled" not in use.kv.offers else min(2 * load.longest, self._parts.runner.context)
        kv = CountedKV(use.kv, counter, max(0, room - load.longest))
        use = attrs.evolve(use, kv=cast(KVBackend, kv), policy=cast(BudgetPolicy, Steady(most, looks)), attention=())
        parts = attrs.evolve(self._parts, composition=use)
        recipe = attrs.evolve(self._recipe, batch_size=load.rows, accept=use.rule, check=False, observers=())
        self._hold(counter)
        with counter, contextlib.closing(self._make(recipe, parts, HandClock())) as engine:
            live = use.scheduler.rows(load.rows)  # some have more live than they decode together
            turns, vocabulary = math.ceil(live / load.rows), self._parts.runner.vocabulary
            rows = Rounds(engine, counter, load.longest, like or (Request(0, [0], 1),), turns, vocabulary)
            engine.make_room(room)
            rows.decode([load.prompt] * live)
            near = max(load.prompt, load.longest - most.depth - 1 - ROUNDS)
            rows.decode([near] * live, late=True)
            rows.decode([load.prompt] * ((live + 1) // 2))
            rows.decode([load.prompt] * live)
            if live > 1:
                rows.decode([load.prompt - row % 2 * (load.prompt * 2 // 5) for row in range(live)])
        return rows.footprint(kv.most, self._trials)

    def _tried(self, runner: ModelRunner) -> Peak:
        """Return the memory when a model is tried, which happens before its first run."""
        counter = Allocations(hollow=True, name=self._named)
        self._hold(counter)
        with counter:
            assert runner.kv_shapes is not None
            runner.leaves_out_filler(MANY, 1)
        return counter.peak

    def _hold(self, counter: Allocations) -> None:
        for name, model in ((TARGET, self._parts.target), (DRAFT, self._parts.draft)):
            if model is not None:
                counter.hold([*model.parameters(), *model.buffers()], name)

    def _named(self, tensor: torch.Tensor) -> str | None:
        """Return the part of a tensor whose shape tells it."""
        shape = tuple(tensor.shape)
        if len(shape) > 1 and shape[-1] in self._vocabularies and tensor.is_floating_point():
            return LOGITS
        if shape[1:] in self._states:
            return STATES
        if (len(shape) == 3 and tensor.dtype is torch.bool) or (len(shape) == 4 and shape[1] == 1 < shape[-1]):
            return MASKS
        return None


class Rounds:
    """Rounds of sequences that come one batch after the other, and the most bytes that were in use in those of each."""

    def __init__(
        self,
        engine: CountedEngine,
        counter: Allocations,
        longest: int,
        like: Rows[Request],
        turns: int,
        vocabulary: int,
    ) -> None:
        self._engine, self._counter, self._longest, self._like, self._turns = engine, counter, longest, like, turns
        self._vocabulary = vocabulary
        self._cached = self._states = 0
        self._late = False
        self._rounds: list[Peak] = []
        self._growths: list[Peak] = []
        """The same of the moments at which caches grew."""
        self._live: deque[tuple[int, int]] = deque()
        self._number = 0
        self._reported = 0
        """The most bytes of a report's logits."""
        self._report: RoundReport | None = None
        """The latest round's report: who decodes has it while the next round is decoded."""

    def decode(self, prompts: Rows[int], late: bool = False) -> None:
        """Decode some rounds of sequences of so many tokens, in the place of as many that were there before.

        Args:
            prompts: tokens of each.
            late: whether they have been there for long: what reading them takes is not counted, but for what their caches do.
        """
        for _ in range(len(self._live) and len(prompts)):
            self._engine.abort(self._live.popleft())
        span = 1 + max(one.index for one in self._like)
        for row, tokens in enumerate(prompts):
            turn, place = divmod(row, len(self._like))
            one = self._like[place]
            index = self._number + turn * span + one.index
            request = attrs.evolve(
                one,
                index=index,
                prompt_ids=told_apart(index, tokens, self._vocabulary),
                max_new_tokens=self._longest - tokens,
                stop_token_ids=frozenset(),
                stop_checks=(),
                arrival=0.0,
                max_time=None,
                constraint=None,
            )
            self._engine.add(request)
            self._live.append(request.key)
        self._number += span * (1 + len(prompts) // len(self._like))
        self._counter.begin()
        self._late = self._late or late
        self._step()
        if late:
            self._growths.append(self._counter.made.get(CACHE, NOTHING))
            self._counter.begin()
        for _ in range(self._turns + (ROUNDS - 1 if late else 0)):
            self._step()
        self._growths.append(self._counter.made.get(CACHE, NOTHING))
        self._rounds.append(self._counter.peak)

    def footprint(self, most: Rows[int], trials: Rows[Peak]) -> Footprint:
        """Return what was counted.

        Args:
            most: the most bytes that the caches' stores hold, and those that they take where they grow, where the backend tells;
                they are then in the place of what was counted. Empty: it does not.
            trials: what was counted when each model was tried, without caches.
        """
        held, growth = most or (self._cached, 0)
        found = [*self._rounds, *self._growths]
        if most:
            found = [with_part(one, CACHE, held) for one in self._rounds]
            found += [with_part(one, CACHE, held + growth) for one in self._growths]
        for one in trials:  # some a model goes through when it is first asked, with caches open and a report at hand
            found.append(with_part(with_part(one, CACHE, held), LOGITS, one.parts.get(LOGITS, 0) + self._reported))
        peak = max(found, key=lambda one: one.total)
        spare = FEW + sum(nbytes for name, nbytes in peak.parts.items() if name in PASSING) // SHARE
        peak = with_part(peak, OTHERS, peak.parts.get(OTHERS, 0) + spare)
        return Footprint(peak.total, of_some(peak.parts), held + self._states)

    def _step(self) -> None:
        gc.collect()
        with uncollected():
            self._report = self._engine.step() or self._report
        if self._report is not None and self._report.logits_BTV is not None:
            self._reported = max(self._reported, self._report.logits_BTV.nbytes)
        held, states = self._engine.held_bytes
        self._cached = max(self._cached, held - states)
        self._states = self._states if self._late else max(self._states, states)


def told_apart(index: int, tokens: int, vocabulary: int) -> list[int]:
    """Return the tokens of a prompt that begins as no other does: what several begin with might be read once for all."""
    return [index // vocabulary**place % vocabulary for place in range(min(tokens, 4))] + [0] * (tokens - 4)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keep what refers to itself inside the block: when it goes in a run is up to Python, and a plan is for the worst."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def with_part(peak: Peak, name: str, nbytes: int) -> Peak:
    """Return a peak with so many bytes of a part in the place of those that were counted."""
    return Peak(peak.total - peak.parts.get(name, 0) + nbytes, {**peak.parts, name: nbytes})


def of_some(parts: Mapping[str, int]) -> dict[str, int]:
    """Return the parts that have bytes."""
    return {name: count for name, count in parts.items() if count}
