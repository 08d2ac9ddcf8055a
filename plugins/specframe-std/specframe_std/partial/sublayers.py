"""Sublayers, the attention and the MLP of decoder layers, and models that leave some of them out.

A sublayer that is left out adds nothing to the hidden states, and is not computed. Nothing is known of architectures: which modules
of a layer attend and which hold an MLP is seen when four tokens are fed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import attrs
import torch
from transformers import PreTrainedModel

from specframe.contracts.cache import DenseView
from specframe.devices import kinds
from specframe.errors import ModelError, OptionError, literal
from specframe.model.decoder_layers import decoder_layers
from specframe.model.model_checks import Reordered, SelfTests
from specframe.model.transformers_model import TransformersModel
from specframe_std.partial.model_copies import before, with_forward, with_module, with_modules

KINDS = ("attn", "mlp")
RANGE = re.compile(r"(?:(attn|mlp):)?([0-9]{1,4})(?:-([0-9]{1,4}))?")
"""A range of layers. Numbers have four digits at most: a range of more layers than any model has must not fill the memory."""


@attrs.frozen(order=True)
class Sublayer:
    """The attention or the MLP of one layer."""

    kind: str
    """"attn" or "mlp"."""
    layer: int
    """The layer's number, as transformers has it: the first is 0."""


def read_sublayers(name: str, text: object) -> frozenset[Sublayer]:
    """Return the sublayers that a text names, as in ``attn:3-7+9+mlp:5``: a kind is meant until another is named.

    Raises:
        OptionError: it is no such text; ``name`` is what the sentence calls it.
    """
    found, kind = set[Sublayer](), None
    for part in str(text).split("+"):
        match = RANGE.fullmatch(part)
        kind = match and (match[1] or kind)
        numbers = range(int(match[2]), int(match[3] or match[2]) + 1) if match else ()
        if kind is None or not numbers:
            raise OptionError(f"{name}: expected layers of attn and mlp, as in attn:3-7+9+mlp:5, got {literal(text)}")
        found |= {Sublayer(kind, number) for number in numbers}
    return frozenset(found)


def write_sublayers(sublayers: Iterable[Sublayer]) -> str:
    """Return the text of which :func:`read_sublayers` makes these sublayers."""
    parts, held = [], sorted(sublayers)
    for kind in KINDS:
        numbers = [one.layer for one in held if one.kind == kind]
        runs = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
        ranges = [[number for _, number in run] for _, run in runs]
        texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in ranges]
        parts += [f"{kind}:{text}" if place == 0 else text for place, text in enumerate(texts)]
    return "+".join(parts)


def without_sublayers(model: PreTrainedModel, sublayers: Iterable[Sublayer], name: str) -> PreTrainedModel:
    """Return a model made of a model's own modules that leaves sublayers out; the given model is left as it is.

    Raises:
        ModelError: as :class:`Removable` does.
    """
    left_out = frozenset(sublayers)
    return Removable(model, left_out, name).without(left_out)


class Removable:
    """Sublayers of a model that can be left out.

    Args:
        model: a causal language model.
        sublayers: those that are tried.
        name: what errors call the model.

    Raises:
        ModelError: there is no such layer, or a layer is not made of an attention and an MLP that each add to its input.
    """

    def __init__(self, model: PreTrainedModel, sublayers: Iterable[Sublayer], name: str) -> None:
        self._model, wanted = model, sorted(sublayers)
        layers, paths = text_layers(model), {module: path for path, module in model.named_modules()}
        if beyond := [one for one in wanted if one.layer >= len(layers)]:
            raise ModelError(
                f"{name} has layers 0 to {len(layers) - 1}: expected sublayers of these to be left out, got "
                f"{write_sublayers(beyond)}"
                if layers
                else f"{name} does not keep its layers in one list: expected that of a model whose sublayers are left out"
            )
        numbers = sorted({one.layer for one in wanted})
        self._layers, self._paths, self._name = {number: layers[number] for number in numbers}, paths, name
        self._parts = self._tried()

    def without(self, sublayers: Iterable[Sublayer]) -> PreTrainedModel:
        """Return a model of the model's own modules that leaves some of the sublayers out."""
        replaced = {path: part for one in sublayers for path, part in self._parts[one].items()}
        return cast(PreTrainedModel, with_modules(self._model, replaced))

    def weights(self, sublayer: Sublayer) -> int:
        """Return the number of weights of a sublayer."""
        return sum(weight.numel() for part in self._parts[sublayer].values() for weight in part.parameters())

    # ---- what the modules of layers do is seen when a few tokens are fed to copies of the model -----------------------

    def _tried(self) -> dict[Sublayer, dict[str, torch.nn.Module]]:
        """Return the modules that take the places of each sublayer's own, by their paths.

        Raises:
            ModelError: a layer has no attention or no MLP, or does more than add both to its input.
        """
        seen = self._watched()
        found: dict[Sublayer, dict[str, torch.nn.Module]] = {}
        for number, layer in self._layers.items():
            for kind in KINDS:
                names = [name for name, one in seen[number].items() if one.attends == (kind == "attn")]
                if not names:
                    raise ModelError(f"layer {number} of {self._name} has no module that is its {kind}: expected one")
                found[Sublayer(kind, number)] = {
                    f"{self._paths[layer]}.{name}": with_forward(
                        layer.get_submodule(name), _adding_nothing(seen[number][name].output)
                    )
                    for name in names
                }
        self._require_sums(found)
        return found

    def _watched(self) -> dict[int, dict[str, _Seen]]:
        """Return what the children of each layer that compute something did, by their names."""
        seen: dict[int, dict[str, _Seen]] = {number: {} for number in self._layers}
        probe, watching = _Counting(), dict[str, torch.nn.Module]()
        for number, layer in self._layers.items():
            for name, child in layer.named_children():
                if any(weight.dim() > 1 for weight in child.parameters()):
                    watched = with_forward(child, _watching(name, seen[number], probe))
                    watching[f"{self._paths[layer]}.{name}"] = watched
        self._feed(with_modules(self._model, watching), probe)
        return seen

    def _require_sums(self, parts: Mapping[Sublayer, Mapping[str, torch.nn.Module]]) -> None:
        """Raise :class:`ModelError` unless a layer gives its input back when all of its sublayers are left out."""
        checked, unlike = dict[str, torch.nn.Module](), list[int]()
        for number, layer in self._layers.items():
            path, emptied = self._paths[layer], layer
            for kind in KINDS:
                for place, part in parts[Sublayer(kind, number)].items():
                    emptied = with_module(emptied, place.removeprefix(f"{path}.").split("."), part)
            checked[path] = with_forward(emptied, _comparing(number, unlike))
        self._feed(with_modules(self._model, checked), Reordered())
        if unlike:
            raise ModelError(
                f"layer {unlike[0]} of {self._name} does more than add its attention and its MLP to its input: expected a layer "
                "that gives its input back when both are left out"
            )

    def _feed(self, model: torch.nn.Module, probe: Reordered) -> None:
        SelfTests(TransformersModel(cast(PreTrainedModel, model), self._name.removeprefix("the "))).tried(probe)


def text_layers(model: PreTrainedModel) -> list[torch.nn.Module]:
    """Return the layers of a model's language model, the first of which is layer 0, or nothing if they are not in one list."""
    known, stated = set(decoder_layers(model)), getattr(model.config.get_text_config(), "num_hidden_layers", None)
    modules = cast(torch.nn.Module, model.get_decoder()).modules()  # not those that read images
    lists = [[*one] for one in modules if isinstance(one, torch.nn.ModuleList) and len(one) == stated]
    return next((held for held in lists if known.issuperset(held)), [])


@attrs.define
class _Seen:
    """What a module was seen to do while tokens were fed."""

    attends: bool
    """Whether it wrote keys and values."""
    output: Any
    """Its output with the size of each hidden state in its place, and None in place of all else."""


class _Counting(Reordered):
    """Counts what layers write."""

    writes = 0

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> DenseView:
        """Return keys and values (B, H, S, D)."""
        self.writes += 1
        return super().write(layer, keys, values)


def _watching(name: str, seen: dict[str, _Seen], probe: _Counting) -> Callable[..., Any]:
    """Return a ``forward`` that does what a module's does, and notes it under the module's name."""

    def forward(child: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
        written = probe.writes
        output = before(child)(*arguments, **options)
        hidden = _hidden(arguments, options)
        sizes = _sizes(output, hidden.shape[:-1])
        if _holds_size(sizes):
            seen[name] = _Seen(probe.writes > written, sizes)
        return output

    return forward


def _comparing(number: int, unlike: list[int]) -> Callable[..., Any]:
    """Return a ``forward`` that does what a layer's does, and notes the layer's number if its output is not its input."""

    def forward(emptied: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
        output = before(emptied)(*arguments, **options)
        first = output[0] if isinstance(output, tuple) else output
        if kinds.of(first.device).values and not torch.equal(first, _hidden(arguments, options)):
            unlike.append(number)
        return output

    return forward


def _adding_nothing(sizes: Any) -> Callable[..., Any]:
    """Return a ``forward`` whose hidden states are zero, in the places and of the sizes of a module's own."""

    def forward(_: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
        hidden = _hidden(arguments, options)

        def filled(size: Any) -> Any:
            if isinstance(size, tuple):
                return tuple(filled(one) for one in size)
            return None if size is None else hidden.new_zeros(*hidden.shape[:-1], size)

        return filled(sizes)

    return forward


def _hidden(arguments: tuple[Any, ...], options: Mapping[str, Any]) -> torch.Tensor:
    """Return the hidden states that a module is given: the first tensor of its arguments."""
    given = (*arguments, *(options[name] for name in ("hidden_states",) if name in options), *options.values())
    return next(one for one in given if isinstance(one, torch.Tensor))


def _sizes(output: Any, places: torch.Size) -> Any:
    """Return a module's output with the size of each of its hidden states in its place, and None in place of all else."""
    if isinstance(output, tuple):
        return tuple(_sizes(one, places) for one in output)
    fits = isinstance(output, torch.Tensor) and output.shape[:-1] == places
    return output.shape[-1] if fits else None


def _holds_size(sizes: Any) -> bool:
    return any(_holds_size(one) for one in sizes) if isinstance(sizes, tuple) else sizes is not None
