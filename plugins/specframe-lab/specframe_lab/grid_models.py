"""The models of a grid: each is loaded once, whatever number of cells uses it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from specframe.models import loading as models
from specframe.models.pairs import by_model, choose, chosen_name
from specframe.pipeline import Pipeline
from specframe.plugins.recipe import DEFAULTS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specframe.contracts.roles import Observer
    from specframe_lab.grid import Cell


def models_of(cell: Cell) -> tuple[Any, Any, Any]:
    """Return a cell's target, drafter and draft model, see :func:`specframe.models.pairs.choose`."""
    return choose(cell.get("target", DEFAULTS.target), cell.get("drafter", DEFAULTS.drafter))


class LoadedModels:
    """Models and tokenizers by name, device, dtype and load options."""

    def __init__(self) -> None:
        self._models: dict[Any, PreTrainedModel] = {}
        self._tokenizers: dict[Any, Any] = {}
        self.chats: dict[str, list[Any]] = {}
        """Prompts with the answers of a target in their history, by its settings."""

    def target(self, cell: Cell) -> PreTrainedModel:
        """Return a cell's target."""
        return self._model(models_of(cell)[0], "target", cell)

    def pipeline(self, cell: Cell, observers: Iterable[Observer] = ()) -> Pipeline:
        """Return a new pipeline for a cell, on models that are loaded already where that is possible.

        Generation configs are left aside: what is compared is the models' own greedy decoding, or sampling at one temperature.
        """
        given = cell.get("drafter", DEFAULTS.drafter)
        name, drafter, draft_model = models_of(cell)
        alone = draft_model is not None and drafter == by_model()  # a drafter with options loads its model itself
        drafter = self._model(draft_model, "draft", cell) if alone else chosen_name(given, drafter, draft_model)
        if name not in self._tokenizers:
            self._tokenizers[name] = models.load_tokenizer(name)
        loaded = {"target": self._model(name, "target", cell), "drafter": drafter, "tokenizer": self._tokenizers[name]}
        return Pipeline(**{"generation_config": None, **cell, **loaded}, observers=observers)

    def _model(self, name: Any, role: str, cell: Cell) -> PreTrainedModel:
        device = models.pick_device(cell.get("device", DEFAULTS.device))
        dtype = models.pick_dtype(cell.get("dtype", DEFAULTS.dtype), device)
        given = cell.get("load_options")
        key = name, device, dtype, repr(given)
        if key not in self._models:
            self._models[key] = models.load_model(name, role, device, dtype, options=models.keywords(given))
        return self._models[key]
