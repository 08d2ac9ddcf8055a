"""Models that torchao quantises while they are loaded: ``make test-torchao``, in an environment of its own.

Where weights alone are quantised, output is that of the reference decoder. Where activations are rounded, too, it may part from it
where two tokens are tied in the precision of eight bits.
"""

from __future__ import annotations

from typing import Any

import pytest
from specframe_std.load_options import configs
from specframe_testing import harness
from specframe_testing.instrumentation.ties import Scales
from torchao.quantization import Int8WeightOnlyConfig
from torchao.quantization.granularity import PerGroup
from transformers import TorchAoConfig

from specframe import Pipeline
from specframe.errors import SpecframeError
from specframe.models.precision import STEP, eps, quantised_weights

PROMPTS = harness.random_prompts((5, 9, 3, 14), 300, seed=1)
WEIGHTS, DYNAMIC = "torchao-int8-weight-only", "torchao-int8-dynamic-activation-int8-weight"


def decoded(load_options: Any, **options: Any) -> tuple[Pipeline, list[list[int]], list[list[int]]]:
    """Return a pipeline, the continuations that it gives and those of the reference decoder."""
    settings = {"device": "cpu", "batch_size": 3, "draft_length": 3, "generation_config": None, **options}
    pipe = Pipeline("tiny", "tiny-draft", load_options=load_options, **settings)
    found = [one.token_ids for one in pipe.generate(PROMPTS, 24)]
    return pipe, found, [list(harness.continuation(pipe.target_model, one, 24)) for one in PROMPTS]


@pytest.mark.parametrize("align", ["ragged", "eqspec", "exspec"])
def test_quantised_weights_are_decoded_exactly(align: str) -> None:
    """Both models are quantised, and the precision is that of their dtype."""
    pipe, found, wanted = decoded(WEIGHTS, align=align, dtype="float32")
    assert pipe.draft_model is not None
    assert [*quantised_weights(pipe.target_model)]
    assert [*quantised_weights(pipe.draft_model)]
    assert found == wanted


def test_a_config_that_was_made_is_taken() -> None:
    """Options that need objects are given in Python."""
    given = {"quantization_config": TorchAoConfig(Int8WeightOnlyConfig(granularity=PerGroup(32)))}
    pipe, found, wanted = decoded(given, dtype="float32")
    assert next(quantised_weights(pipe.target_model)).block_size == [1, 32]
    assert found == wanted


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rounded_activations_part_at_ties_alone(dtype: str) -> None:
    """A text that parts from the reference does so where both tokens are as good as tied in the precision of eight bits."""
    pipe, found, wanted = decoded(DYNAMIC, dtype=dtype)
    assert eps(pipe.target_model) == STEP
    for prompt, one, other in zip(PROMPTS, found, wanted, strict=True):
        parted = next((n for n, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)
        if parted is not None:
            weighed = Scales(pipe.target_model).weigh([*prompt, *other[:parted]], [one[parted], other[parted]])
            assert weighed.tie


def test_what_torchao_refuses_is_told() -> None:
    """An option that a class of torchao has and does not take any more ends in torchao's sentence; names are listed."""
    assert {WEIGHTS, DYNAMIC} <= {*configs()}
    with pytest.raises(SpecframeError, match=f"^load_options '{WEIGHTS}': .*group_size=None, got 32"):
        Pipeline("tiny", "none", load_options=f"{WEIGHTS},group-size=32")
    with pytest.raises(SpecframeError, match="did you mean 'torchao-int8-weight-only'"):
        Pipeline("tiny", "none", load_options="torchao-int8-weights-only")
