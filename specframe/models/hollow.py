"""Models without numbers: on torch's device "meta" a tensor has a shape and takes no memory."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from specframe.errors import ModelError, sentence
from specframe.models.loading import silent

META = torch.device("meta")


def hollow_of(config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """Return the model of a configuration without weights.

    Raises:
        ModelError: transformers cannot make the model.
    """
    try:
        with META, silent():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    except Exception as error:  # whatever transformers raises on sizes that do not fit
        raise ModelError(
            f"no model can be made of the configuration of a {config.model_type}: {sentence(error)}"
        ) from error
    return model.eval()
