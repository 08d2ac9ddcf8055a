"""Names that specframe's other distributions offer: where one is not installed, an error says which.

A test compares the names with what the distributions register.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping

NAMES: Mapping[str, Mapping[str, str]] = {
    "command": {
        "run": "specframe-std",
        **dict.fromkeys(("heads", "models check"), "specframe-heads"),
        **dict.fromkeys(
            ("compare", "verify", "reproduce", "trace", "predict", "plan", "laws", "plugins matrix", "models show"),
            "specframe-lab",
        ),
        "serve": "specframe-serve",
        "plugins new": "specframe-testing",
        "models": "specframe-std",
    },
    "drafter": dict.fromkeys(
        ("clover", "clover2", "dflash", "dspark", "eagle", "hydra", "medusa", "mtp", "pard", "peagle"),
        "specframe-heads",
    ),
    "executor": {"ray": "specframe-ray"},
    "option": {
        **dict.fromkeys(
            (
                "accelerate",
                "assisted",
                "graphs",
                "layers",
                "load_options",
                "processors",
                "rounds",
                "states",
                "watchdog",
            ),
            "specframe-std",
        ),
        "bitwise": "specframe-bitwise",
        "check": "specframe-testing",
        "memory": "specframe-memory",
    },
    "model": dict.fromkeys(
        ("tiny", "tiny-draft", "tiny-eagle3", "tiny-medusa", "tiny-clover2", "tiny-dflash"), "specframe-tiny"
    ),
}
"""The distribution of each name, by kind."""

HEADS = "specframe-heads"
"""The distribution that runs checkpoints of heads."""
SIGNS = (
    "speculators_model_type",
    "eagle_config",
    "dflash_config",
    "medusa_num_heads",
    "medusa_fc_bias",
    "hydra_num_heads",
    "clover_num_heads",
)
"""Keys of a config.json that say: this is a head, no language model."""


def is_installed(distribution: str) -> bool:
    """Return whether a distribution is installed."""
    try:
        return bool(importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return False
