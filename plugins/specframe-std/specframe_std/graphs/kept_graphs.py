"""The captured graphs of a store, which stay as long as it does, from one run to the next."""

from __future__ import annotations

from typing import Any, cast

import attrs
import torch

from specframe.contracts.cache import KVStore
from specframe.contracts.graphs import Forward
from specframe.contracts.model import ForwardOptions, Model
from specframe.model.attention.masks import power_of_two
from specframe.model.twin import plain_settings
from specframe.value_checks import unwrap_guards
from specframe_std.graphs.captured_forward import PROMPTS, CapturedForward
from specframe_std.graphs.captured_states import StatesGraphs
from specframe_std.graphs.graph_cache import GraphCache, Record, recorder
from specframe_std.states.row_states import RowStates


@attrs.define(eq=False)
class ModelGraphs:
    """The forwards of one model that are captured over one store, those of runs before included."""

    _model: Model
    how: ForwardOptions
    _record: Record
    _any_row: bool = False
    """Whether the store offers "any-row"."""
    rounds: GraphCache = attrs.field(init=False)
    """Rounds that are captured whole: of one run, whose rows of tokens they read and write."""
    _settings: list[Any] = attrs.field(init=False)
    _forward: CapturedForward | None = attrs.field(default=None, init=False)
    _before: int = attrs.field(default=0, init=False)
    """The new shapes of runs before."""

    def __attrs_post_init__(self) -> None:
        self.rounds, self._settings = GraphCache(self._record, "whole rounds"), settings(self._model.module)

    def suits(self, model: Model, how: ForwardOptions) -> bool:
        """Return whether these are of a model as it is now, whose forwards are run so."""
        if unwrap_guards(self._model) is not unwrap_guards(model) or asked(self.how) != asked(how):
            return False
        return self._settings == settings(model.module)

    def begin(self, forward: Forward, store: KVStore, slots: int) -> CapturedForward:
        """Return the forwards of a run that feeds the model so."""
        pack = self._model.by_lengths(self.how)
        if self._forward is None:
            leaves_out = self._model.leaves_out_padding
            states = None if self.how.states is None else StatesGraphs(cast(RowStates, self.how.states), self._record)
            self._forward = CapturedForward(
                forward, store.rows, slots, self._record, pack, leaves_out, self._any_row, states
            )
        self._forward.forward = forward
        self._before = self._new
        return self._forward

    def room(self, rows: int, tokens: int) -> int | None:
        """Return the tokens that each row of a mixed batch's chunk is given, or None: see
        :meth:`specframe.contracts.graphs.ModelGraphs.room`."""
        rounded = power_of_two(tokens)
        return rounded if rows * rounded <= PROMPTS else None

    @property
    def new_shapes(self) -> int:
        """The times in this run that a forward took longer than others of its shape: it was new, or was captured."""
        return self._new - self._before

    @property
    def _new(self) -> int:
        return self.rounds.new + (self._forward.graphs.new if self._forward else 0)


@attrs.define(eq=False)
class StoreGraphs:
    """What is captured over one store: for each model that is fed through it in this run, and those of the run before."""

    _any_row: bool = False
    """Whether the store offers "any-row"."""
    _now: list[ModelGraphs] = attrs.field(factory=list, init=False)
    _before: list[ModelGraphs] = attrs.field(factory=list, init=False)

    def of(self, model: Model, how: ForwardOptions) -> ModelGraphs | None:
        """Return the captured graphs of a model that is fed through the store now: those of the run before if it had the same.

        None where layers keep states that are not rows' own, but shared ones or another model's.
        """
        if model.state_layers and type(how.states) is not RowStates:
            return None
        found = next((one for one in self._before if one.suits(model, how)), None)
        if found is None:
            found = ModelGraphs(model, how, recorder(model.device), self._any_row)
        else:
            self._before.remove(found)
        self._now.append(found)
        return found

    def end(self) -> None:
        """Keep this run's for the next one, in place of all others."""
        self._now, self._before = [], self._now
        for one in self._before:
            one.rounds.clear()


def asked(how: ForwardOptions) -> tuple[Any, ...]:
    """Return what two ways of running forwards are compared by."""
    backends = how.attention if isinstance(how.attention, tuple) else (how.attention,)
    return (*map(unwrap_guards, backends), how.layers)


def settings(module: torch.nn.Module) -> list[Any]:
    """Return what a captured graph of a model depends on: where its tensors are, as far as they are of torch's own type, and its
    settings. A weight that is written to stays where it is."""
    tensors, plain = (*module.parameters(), *module.buffers()), (torch.Tensor, torch.nn.Parameter)
    return [(id(one), one.data_ptr() if type(one) in plain else 0) for one in tensors] + plain_settings(module)
