"""The configuration of each layer: some models have layers with other heads, sizes or windows than the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def layer_configs(config: Any) -> Sequence[Any]:
    """Return the configuration of each layer, or the one that all layers have.

    Whoever reads a number of a configuration whose layers differ in it gets an error of transformers', which is no AttributeError.
    """
    return list(config.per_layer_config) if getattr(config, "is_heterogeneous", False) else [config]
