"""Sampled tokens, held against the exact probabilities of a model small enough for all continuations to be enumerated.

The joint counts of the first three tokens are compared with the probabilities of all 125. The statistic is Pearson's chi-square
summed over the prompts; outcomes expected fewer than five times are pooled.
"""

from __future__ import annotations

import functools
import itertools

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specframe.pipeline import Pipeline
from specframe.text.generation import GenerationSettings
from specframe.text.sampling import Sampling

VOCABULARY, FIRST = 5, 3
PROMPTS = ((1,), (2, 3, 4, 0), (0, 0))

Counts = dict[tuple[int, ...], torch.Tensor]


@functools.cache
def small(seed: int) -> LlamaForCausalLM:
    """Return a model small enough for all continuations to be enumerated; that of seed 1 is the target."""
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, initializer_range=0.7,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


@functools.cache
@torch.no_grad()
def exact(prompt: tuple[int, ...], sampling: Sampling) -> torch.Tensor:
    """Return the target's probability of every continuation of three tokens, (V ** 3,)."""
    new = torch.tensor([*itertools.product(range(VOCABULARY), repeat=FIRST)])
    ids = torch.cat([torch.tensor(prompt).expand(len(new), -1), new], dim=1)
    logits = small(1)(ids).logits[:, len(prompt) - 1 : -1].double()
    chances = torch.ones(len(new), dtype=torch.float64)
    for place in range(FIRST):
        scores = logits[:, place]
        for processor in GenerationSettings(sampling).plan(len(prompt), 32, [], "cpu").processors:
            scores = processor(ids[:, : len(prompt) + place], scores)
        chances *= scores.softmax(-1).gather(1, new[:, place : place + 1])[:, 0]
    return chances


def drawn(pipe: Pipeline, sampling: Sampling, samples: int, prompts: tuple[tuple[int, ...], ...] = PROMPTS) -> Counts:
    """Return how often each continuation of three tokens followed each prompt, (V ** 3,), in ``samples`` sequences per prompt."""
    asked = [prompts[number % len(prompts)] for number in range(samples * len(prompts))]
    counts = {prompt: torch.zeros(VOCABULARY**FIRST, dtype=torch.float64) for prompt in prompts}
    for prompt, result in zip(asked, pipe.generate(asked, FIRST + 1, sampling=sampling), strict=True):
        first, second, third = result.token_ids[:FIRST]
        counts[prompt][(first * VOCABULARY + second) * VOCABULARY + third] += 1
    return counts


def chi_square(counts: torch.Tensor, chances: torch.Tensor) -> tuple[float, int]:
    """Return Pearson's statistic and its degrees of freedom, outcomes expected fewer than five times pooled.

    Infinite when an outcome of no probability occurred.
    """
    expected = chances * counts.sum()
    if counts[chances == 0].sum():
        return float("inf"), 1
    rare = expected < 5
    seen = torch.cat([counts[~rare], counts[rare].sum()[None]])
    meant = torch.cat([expected[~rare], expected[rare].sum()[None]])
    kept = meant > 1e-9
    return float(((seen - meant)[kept] ** 2 / meant[kept]).sum()), int(kept.sum()) - 1


def p_value(counts: Counts, sampling: Sampling) -> float:
    """Return the probability of counts at least as far from the target's own as these, over all prompts."""
    found = [chi_square(row, exact(prompt, sampling)) for prompt, row in counts.items()]
    statistic, freedom = (torch.tensor(float(sum(values)), dtype=torch.float64) for values in zip(*found, strict=True))
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))
