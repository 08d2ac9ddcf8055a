"""The states of a model that is fed alone, outside of a run, where its logits are to be the same to the bit.

A model's own scan depends on the number of tokens. Here its layers take in one token after the other, by their kinds of state, as
they do in a run. The model's own cache has keys and values alone.

Tensor names carry their shape: B rows, T tokens fed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from transformers import PreTrainedModel

from specframe.contracts.states import After, Inputs, LayerState, Parts
from specframe.devices.kinds import NO_CONTEXT
from specframe.model.state_layers import ModuleState, state_layers
from specframe.model.transformers_model import has_other_layers
from specframe.model.twin import CurrentForward, running, twin
from specframe.models.own_cache import OwnCache


@attrs.define(eq=False)
class NotedState:
    """What a layer has noted of the tokens that were fed last."""

    before: Parts
    inputs: Inputs = ()
    after: Parts = ()


class OwnStates:
    """The states of rows that a model is fed, from the first token on.

    Args:
        model: a twin of the model.
        prompts: whether all that is fed is of prompts; else what is fed first.
    """

    def __init__(self, model: PreTrainedModel, prompts: bool = False) -> None:
        self._prompts, keeps = prompts, has_other_layers(model.config.get_text_config())
        self.layers = state_layers(model, f"the model ({type(model).__name__})") if keeps else {}
        self.noted: dict[int, NotedState] = {}
        """What the layers have noted, by their number."""

    def feeding(self, ids_BT: torch.Tensor) -> contextlib.AbstractContextManager[None]:
        """Have a forward of these tokens, inside the block, go on from the states."""
        return running(CurrentForward(forwards=self._forwards(ids_BT))) if self.layers else NO_CONTEXT

    def _forwards(self, ids_BT: torch.Tensor) -> Mapping[torch.nn.Module, Callable[..., Any]]:
        return {
            layer.module: layer.forward(self._state(number, layer, ids_BT)) for number, layer in self.layers.items()
        }

    def _state(self, number: int, layer: ModuleState, ids_BT: torch.Tensor) -> LayerState:
        """Return the states of a layer before tokens, none of which is padding."""
        real_BT = torch.ones_like(ids_BT, dtype=torch.bool)
        prompt_BT = None if self._prompts or number not in self.noted else ~real_BT
        before = self.noted[number].after if number in self.noted else self._zeros(layer, ids_BT)
        noted = NotedState(before)

        def note(inputs: Inputs, after: After | None) -> None:
            assert after is not None
            noted.inputs, noted.after = inputs, after() if callable(after) else after
            self.noted[number] = noted

        return LayerState(before, real_BT, None, None, prompt_BT, note)

    def _zeros(self, layer: ModuleState, ids_BT: torch.Tensor) -> Parts:
        shape = layer.shape
        return tuple(
            torch.zeros(len(ids_BT), *size, dtype=dtype, device=shape.device or ids_BT.device)
            for size, dtype in zip(shape.sizes, shape.dtypes, strict=True)
        )


class SteppedCache(OwnCache):
    """Feeds a model tokens one after the other, with its states in addition to its own cache.

    Args:
        model: the model.
        options: those of the cache.
        prompts: whether all that is fed is of prompts; else what is fed first.
    """

    def __init__(self, model: PreTrainedModel, prompts: bool = False, **options: Any) -> None:
        model = twin(model)
        super().__init__(model, **options)
        self.states = OwnStates(model, prompts)

    def feed(self, ids_BT: torch.Tensor, positions_BT: torch.Tensor, **options: Any) -> torch.Tensor:
        """Return the logits that the model has after tokens at these positions."""
        with self.states.feeding(ids_BT):
            return super().feed(ids_BT, positions_BT, **options)
