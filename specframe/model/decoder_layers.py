"""The decoder layers of a model: which modules they are, and the hidden states between them.

Hidden states have the numbers of transformers' ``output_hidden_states``: 0 is the embedding, n the output of layer n, and the
last one what follows the final norm. One number more is the output of the last layer before that norm, which transformers does
not return.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.fx.experimental._config
from transformers import PreTrainedModel

from specframe.errors import ModelError
from specframe.model.twin import own

Forwards = Mapping[torch.nn.Module, Callable[..., Any]]
"""What is called in place of the ``forward`` of modules."""


def decoder_layers(model: PreTrainedModel) -> list[torch.nn.Module]:
    """Return the modules that transformers calls ``_no_split_modules``."""
    kinds = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in kinds]


@contextlib.contextmanager
def ints_and_sizes_left_open() -> Iterator[None]:
    """Compile graphs inside the block that hold for every layer index, and for sizes that happened to be equal."""
    with (
        torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True, recompile_limit=64),
        torch.fx.experimental._config.patch(use_duck_shape=False),  # type: ignore[attr-defined]
    ):
        yield


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
