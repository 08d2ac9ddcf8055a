"""The decoder layers of a model: which modules they are, the hidden states between them, and layers compiled with torch.compile.

What a layer does to its input is compiled; attention, and the cache with it, is one operator that is not looked into. So a
graph depends neither on the layer nor on the KV backend, and eager and compiled layers share all code that knows of slots. A
graph is compiled for one row and for several, with one token per row and with more.

Hidden states have the numbers of transformers' ``output_hidden_states``: 0 is the embedding, n the output of layer n, and the
last one what follows the final norm. One number more is the output of the last layer before that norm, which transformers does
not return.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import torch
import torch.fx.experimental._config
from transformers import PreTrainedModel

from specframe.errors import ModelError
from specframe.model.attention.interface import attend
from specframe.model.twin import CURRENT, own

OPERATOR = "specframe::attend"
BACKEND = "inductor"
"""Backend of torch.compile."""


Forwards = Mapping[torch.nn.Module, Callable[..., Any]]
"""What is called in place of the ``forward`` of modules."""


def decoder_layers(model: PreTrainedModel) -> list[torch.nn.Module]:
    """Return the modules that transformers calls ``_no_split_modules``."""
    kinds = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in kinds]


def compiled_forwards(model: PreTrainedModel) -> Forwards:
    """Return the compiled ``forward`` of each decoder layer of a model."""
    return {layer: torch.compile(own(layer), dynamic=True, backend=BACKEND) for layer in decoder_layers(model)}


@contextlib.contextmanager
def ints_and_sizes_left_open() -> Iterator[None]:
    """Compile graphs inside the block that hold for every layer index, and for sizes that happened to be equal."""
    with (
        torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True, recompile_limit=64),
        torch.fx.experimental._config.patch(use_duck_shape=False),  # type: ignore[attr-defined]
    ):
        yield


torch.library.define(
    OPERATOR,
    "(Tensor query, Tensor key, Tensor value, Tensor? mask, SymInt layer, float? scaling, SymInt? window) -> Tensor",
)


@torch.library.impl(OPERATOR, "default")
def _update_and_attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    layer: int,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    state, module = CURRENT.get(), cast("torch.nn.Module", types.SimpleNamespace(layer_idx=layer))
    if state.cache is not None:  # None: another thread has compiled the model for itself
        key, value = state.cache.update(key, value, layer)
    if state.masks and mask is not None:
        if (address := mask.data_ptr()) not in state.masks:
            raise ModelError("expected layers that hand their mask on as it is, found some that compute another")
        mask = state.masks[address]
    return attend(module, query, key, value, mask, scaling, sliding_window=window)[0]


@torch.library.register_fake(OPERATOR)
def _shape(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> torch.Tensor:
    rows, heads, length, _size = query.shape
    return query.new_empty(rows, length, heads, value.shape[-1])


class HiddenStates:
    """The places of one model at which its hidden states are taken."""

    def __init__(self, model: PreTrainedModel, name: str) -> None:
        self._layers, self._name = decoder_layers(model), name
        models = [one for one in model.modules() if isinstance(one, PreTrainedModel)]
        around = [one for one in models if any(module in self._layers for module in one.modules())]
        self._whole = around[-1] if around else model
        """The innermost model around the layers: the one that every head calls."""
        stated = getattr(model.config.get_text_config(), "num_hidden_layers", None)
        self._known = len(self._layers) == stated and self._whole is not model

    def check(self, wanted: Iterable[int]) -> None:
        """Raise :class:`ModelError` unless all these hidden states can be taken."""
        if not self._known:
            raise ModelError(
                f"{self._name} does not say which of its modules are its layers: expected as many modules of its "
                "_no_split_modules as its configuration has num_hidden_layers, so that hidden states can be taken"
            )
        if beyond := sorted(set(wanted) - set(range(len(self._layers) + 2))):
            raise ModelError(
                f"{self._name} has hidden states 0 (its embedding) to {len(self._layers)}, and {len(self._layers) + 1} before its "
                f"final norm, got {', '.join(map(str, beyond))}"
            )

    def placed(self, wanted: Iterable[int], usual: Forwards) -> tuple[Forwards, dict[int, torch.Tensor]]:
        """Return ``usual`` with the functions that take the wanted hidden states, and what they fill: hidden states by number."""
        forwards, found = dict(usual), dict[int, torch.Tensor]()
        for number in wanted:
            module, take = self.place(number)
            inner = forwards[module] if module in forwards else own(module)
            forwards[module] = _tapped(inner, number, take, found)
        return forwards, found

    def place(self, number: int) -> tuple[torch.nn.Module, Callable[[tuple[Any, ...], Any], torch.Tensor]]:
        """Return the module that computes a hidden state, and what takes it from the arguments and the output of its forward."""
        if number == 0:
            return self._layers[0], lambda given, _: given[0]
        if number == len(self._layers):
            return self._whole, lambda _, output: output.last_hidden_state
        return self._layers[
            min(number, len(self._layers)) - 1
        ], lambda _, output: output[0] if isinstance(output, tuple) else output


def _tapped(
    inner: Callable[..., Any],
    number: int,
    take: Callable[[tuple[Any, ...], Any], torch.Tensor],
    found: dict[int, torch.Tensor],
) -> Callable[..., Any]:
    """Return a wrapper of a function that also stores ``take(arguments, output)`` in ``found``."""

    def forward(*arguments: Any, **options: Any) -> Any:
        output = inner(*arguments, **options)
        found[number] = take(arguments, output)
        return output

    return forward
