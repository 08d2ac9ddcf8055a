"""Published figures of the paper Batch Speculative Decoding Done Right (arXiv 2510.22876, version 3), as data."""

from __future__ import annotations

SETUP = {
    "device": "NVIDIA A100, 80 GB",
    "precision": "float16",
    "pairs": "Vicuna-7B-v1.3 / Vicuna-68M, Qwen3-8B / Qwen3-0.6B, GLM-4-9B-0414 / GLM-4.5-DRAFT-0.6B",
    "transformers": "4.51.3",
    "draft length": "5",
    "prompts": "480 of SpecBench, raw first turn",
    "longest prompt": "1024 tokens",
    "new tokens": "50 for table 1, 128 for throughput",
    "window of exspec": "48",
}

PAIRS = ("Vicuna", "Qwen3", "GLM4")

MATCH: dict[tuple[str, int], tuple[tuple[float, float], ...]] = {
    ("plain", 4): ((53.8, 98.2), (92.9, 96.5), (93.3, 97.2)),
    ("assisted", 1): ((97.1, 98.4), (94.6, 97.2), (96.0, 98.0)),
    ("eqspec", 1): ((97.3, 98.6), (94.6, 96.9), (96.7, 98.1)),
    ("eqspec", 4): ((92.1, 98.6), (92.3, 95.7), (96.5, 98.3)),
    ("exspec", 1): ((97.3, 98.6), (94.6, 96.9), (96.7, 98.1)),
    ("exspec", 4): ((90.8, 97.6), (95.0, 97.1), (95.2, 97.7)),
    ("padding", 1): ((0, 8.1), (0.2, 2.2), (0, 1.0)),
    ("padding", 4): ((0, 2.2), (0, 0.6), (0, 0.8)),
    ("masking", 1): ((1.9, 39.7), (3.5, 19.9), (1.0, 15.3)),
    ("masking", 4): ((0.2, 31.3), (2.1, 12.6), (0.6, 8.1)),
}
"""Table 1, by scheme and batch size: exact and partial match in % with plain decoding at batch size 1, of each pair."""


Anatomy = tuple[float, ...]
"""The time of one run by its parts: tokens per second; passes of the target that verified a draft, the milliseconds of one, and the
tokens that all rows together gain from one; the shares of verifying, of drafting, and of overhead."""


def derived(tokens_per_second: float, calls: int, milliseconds: float, verify: float, *shares: float) -> Anatomy:
    """Return published figures with the tokens per call that follow from them: tokens/s times seconds per call."""
    tokens = tokens_per_second * milliseconds / 1000 / verify
    return tokens_per_second, calls, milliseconds, tokens, verify, *shares


ANATOMY = {
    "eqspec": derived(95.6, 1469, 24.9, 0.449, 0.274, 0.277),
    "exspec": derived(156.4, 952, 29.1, 0.559, 0.295, 0.146),
}
"""Table 2, at batch size 4."""
ANATOMY_BATCH_SIZE = 4

OVERHEAD = {1: "13%", 8: "39.4%", 16: "46.7%", 32: "38 to 40%"}
"""Overhead share of EQSPEC by batch size; the figures for 8 and 16 come from another passage than the others."""

GROUPING = {
    "uniform": {2: 0.959, 4: 0.893, 8: 0.841, 16: 0.707, 32: 0.442},
    "random": {2: 0.236, 4: 0.175, 8: 0.048, 16: 0.013},
}
"""Share of EXSPEC's rounds that had nothing to realign, by prompt lengths and batch size."""
