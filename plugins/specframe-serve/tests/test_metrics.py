"""Figures in Prometheus' form, of a pipeline that the server would step."""

from __future__ import annotations

from specframe_serve.metrics import Metrics
from specframe_testing import fakes, harness


def test_tokens_that_were_cached_are_counted() -> None:
    """What later prompts find in blocks of earlier ones is a figure of its own."""
    metrics, target = Metrics("fake"), fakes.fake_target()
    pipe = harness.pipeline(target, None, kv="paged,block=4,share=on", batch_size=2, observers=[metrics])
    beginning = harness.random_prompts([14], 61)[0]
    harness.check(pipe, harness.requests([[*beginning, 5], [*beginning, 6], [3]], 4))
    assert 'vllm:prefix_cache_hits_total{model_name="fake"} 12.0' in metrics.text().decode().splitlines()
