"""The kernels that a layer launches on an H100, by the code that Inductor writes for one: ``make test-launches``.

Attention is one more, or two.
"""

from __future__ import annotations

import fake_h100
import pytest
import torch
from specframe_std.layers.traced_forward import trace
from specframe_testing import zoo

from specframe.model.runner import ModelRunner

MOST = {"llama": 8, "mistral": 8, "qwen3": 9, "gemma3": 9, "glm4": 9, "phi3": 9}
"""Kernels of the piece between two layers' attention."""


@pytest.mark.parametrize("name", sorted(MOST))
def test_a_layer_launches_few_kernels(name: str) -> None:
    """A piece between two layers launches at most ``MOST``: four products, and what lies between them fused, writes of keys and
    values among it."""
    model = zoo.build(name, **({} if name == "gemma3" else {"num_hidden_layers": 3})).to(torch.bfloat16)
    runner = ModelRunner(model, "target")
    with torch.inference_mode():
        assert runner.kv_shapes
    found = trace(runner, merges=True, writes=True)
    fake_h100.install()
    assert found.pieces
    told = fake_h100.launches(found.pieces[1].graph)
    assert told["mm"] + told["addmm"] == 4
    assert sum(told.values()) <= MOST[name], told
