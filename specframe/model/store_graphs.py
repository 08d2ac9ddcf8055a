"""Captured graphs that stay from one run to the next, as the store does whose memory they read and write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specframe.contracts.cache import KVStore
from specframe.contracts.model import ForwardOptions, Model
from specframe.contracts.roles import Layout
from specframe.devices.kinds import CapturedGraph
from specframe.model.captured_chains import CapturedChain
from specframe.model.captured_forwards import CapturedForward, Forward
from specframe.model.model_state import settings
from specframe.value_checks import unwrap_guards


class ModelGraphs:
    """The forwards of one model that are captured over one store, those of runs before included.

    Args:
        model: the model.
        how: how its forwards are run.
        record: makes captured graphs.
        drawn_by: what the tokens of a captured chain are drawn by, besides the chain's own choice: the rule, and the seed.
        any_row: whether the store offers "any-row".
    """

    def __init__(
        self,
        model: Model,
        how: ForwardOptions,
        record: Callable[..., CapturedGraph],
        drawn_by: tuple[Any, ...],
        any_row: bool = False,
    ) -> None:
        self.how, self._model, self._record, self._drawn_by = how, model, record, drawn_by
        self._any_row = any_row
        self._settings = settings(model.module)
        self._forward: CapturedForward | None = None
        self._chain: CapturedChain | None = None
        self._before = 0

    def suits(self, model: Model, how: ForwardOptions, drawn_by: tuple[Any, ...]) -> bool:
        """Return whether these are of a model as it is now, whose forwards are run so; chains drawn otherwise are let go."""
        if unwrap_guards(self._model) is not unwrap_guards(model) or asked(self.how) != asked(how):
            return False
        if drawn_by != self._drawn_by:
            self._drawn_by, self._chain = drawn_by, None
        return self._settings == settings(model.module)

    def begin(
        self, forward: Forward, store: KVStore, slots: int, layout: Layout
    ) -> tuple[CapturedForward, CapturedChain | None]:
        """Return the forwards, and the chains where places follow from lengths alone, of a run that feeds the model so."""
        pack = self._model.by_lengths(self.how)
        if self._forward is None:
            leaves_out = self._model.leaves_out_padding
            self._forward = CapturedForward(forward, store.rows, slots, self._record, pack, leaves_out, self._any_row)
        self._forward.begin(forward)
        if not layout.static:
            self._chain = None
        elif self._chain is None:
            self._chain = CapturedChain(forward, layout, store.rows, slots, self._record, pack)
        else:
            self._chain.begin(forward, layout)
        self._before = self._new
        return self._forward, self._chain

    @property
    def new_shapes(self) -> int:
        """The times in this run that a forward took longer than others of its shape: it was new, or was captured."""
        return self._new - self._before

    @property
    def _new(self) -> int:
        return sum(one.graphs.new for one in (self._forward, self._chain) if one is not None)


class StoreGraphs:
    """What is captured over one store: for each model that is fed through it in this run, and those of the run before.

    Args:
        any_row: whether the store offers "any-row".
    """

    def __init__(self, any_row: bool = False) -> None:
        self._any_row = any_row
        self._now: list[ModelGraphs] = []
        self._before: list[ModelGraphs] = []

    def of(
        self, model: Model, how: ForwardOptions, record: Callable[..., CapturedGraph], drawn_by: tuple[Any, ...]
    ) -> ModelGraphs:
        """Return the captured graphs of a model that is fed through the store now: those of the run before if it had the same."""
        found = next((one for one in self._before if one.suits(model, how, drawn_by)), None)
        if found is None:
            found = ModelGraphs(model, how, record, drawn_by, self._any_row)
        else:
            self._before.remove(found)
        self._now.append(found)
        return found

    def end(self) -> None:
        """Keep this run's for the next one, in place of all others."""
        self._now, self._before = [], self._now


def asked(how: ForwardOptions) -> tuple[Any, ...]:
    """Return what two ways of running forwards are compared by."""
    backends = how.attention if isinstance(how.attention, tuple) else (how.attention,)
    return (*map(unwrap_guards, backends), how.layers)
