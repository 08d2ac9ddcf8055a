"""Models without numbers: on torch's device "meta" a tensor has a shape and takes no memory."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from specframe.errors import ModelError, sentence
from specframe.models.loading import silent

META = torch.device("meta")


def hollow_of(config: Any, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """Return the model of a configuration without weights.

    Args:
        config: of a causal language model.
        dtype: its precision, or None for the one that it was saved in, or else bfloat16.

    Raises:
        ModelError: transformers cannot make the model.
    """
    try:
        with META, silent():
            precision = dtype or stored_dtype(config) or torch.bfloat16
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=precision)
    except Exception as error:  # whatever transformers raises on sizes that do not fit
        raise ModelError(
            f"no model can be made of the configuration of a {config.model_type}: {sentence(error)}"
        ) from error
    return model.eval()


def stored_dtype(config: Any) -> torch.dtype | None:
    """Return the precision that a model was saved in, as far as its configuration says."""
    found = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
    return getattr(torch, found, None) if isinstance(found, str) else found
