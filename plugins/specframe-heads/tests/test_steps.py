"""The heads that predict one place after the other, beside independent implementations written node by node."""

from __future__ import annotations

import math

import pytest
import torch
from specframe_heads.stepwise.steps import Clover, Clover2, Cosine, Hydra, Medusa, Steps

SIZE, VOCABULARY, COUNT = 12, 17, 3


def noisy(heads: Steps) -> Steps:
    """Return heads with weights at random: new ones have zeros that hide mistakes."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in heads.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.5)
    return heads.eval()


def matrix(seed: int) -> torch.Tensor:
    return torch.randn(VOCABULARY, SIZE, generator=torch.Generator().manual_seed(seed))


def made(kind: str) -> Steps:
    return noisy(
        {
            "medusa": lambda: Medusa(SIZE, VOCABULARY, COUNT),
            "medusa of two layers": lambda: Medusa(SIZE, VOCABULARY, COUNT, layers=2, bias=False, shared=True),
            "hydra": lambda: Hydra(SIZE, VOCABULARY, COUNT, 1, matrix(1)),
            "hydra of four layers": lambda: Hydra(SIZE, VOCABULARY, COUNT, 4, matrix(1)),
            "hydra without tokens": lambda: Hydra(SIZE, VOCABULARY, COUNT, 2, matrix(1), grounded=False),
            "clover": lambda: Clover(SIZE, 3, COUNT, matrix(2)),
            "clover2": lambda: Clover2(SIZE, 3, COUNT, matrix(1), matrix(2)),
        }[kind]()
    )


KINDS = ("medusa", "medusa of two layers", "hydra", "hydra of four layers", "hydra without tokens", "clover", "clover2")


def linear(module: torch.nn.Linear, x: list[float]) -> list[float]:
    rows, bias = module.weight.tolist(), module.bias.tolist() if module.bias is not None else [0.0] * len(module.weight)
    return [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in zip(rows, bias, strict=True)]


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def block(module: torch.nn.Module, x: list[float]) -> list[float]:
    carried = x if isinstance(module.carried, torch.nn.Identity) else linear(module.carried, x)
    return [c + silu(y) for c, y in zip(carried, linear(module.linear, x), strict=True)]


def rms(module: torch.nn.RMSNorm, x: list[float]) -> list[float]:
    scale = 1 / math.sqrt(sum(v * v for v in x) / len(x) + module.eps)
    return [v * scale * w for v, w in zip(x, module.weight.tolist(), strict=True)]


def gate(module: torch.nn.Module, state: list[float], e: list[float], cosine: bool) -> list[float]:
    q, k, v = linear(module.q, rms(module.norm, state)), linear(module.k, e), linear(module.v, e)
    size, added = len(state) // module.heads, []
    for head in range(module.heads):
        part = slice(head * size, (head + 1) * size)
        product = sum(a * b for a, b in zip(q[part], k[part], strict=True))
        if cosine:
            score = product / (math.hypot(*q[part]) * math.hypot(*k[part]))
        else:
            score = 1 / (1 + math.exp(-product / math.sqrt(size)))
        added += [score * one for one in v[part]]
    return [s + a for s, a in zip(state, added, strict=True)]


def through(blocks: torch.nn.Sequential, x: list[float]) -> list[float]:
    for one in blocks:
        x = block(one, x)
    return x


def expected(heads: Steps, feature: list[float], path: list[int]) -> list[float]:
    """Return the logits after a path of tokens, the row's last token first."""
    place = len(path) - 1
    if isinstance(heads, Medusa):
        lm_head = heads.lm_heads[place % len(heads.lm_heads)]
        return linear(lm_head, through(heads.blocks[place], feature))
    if isinstance(heads, Hydra):
        read = path if heads.reads_tokens else []
        side = feature + [v for token in read for v in matrix(1)[token].tolist()]
        return linear(heads.lm_heads[place], through(heads.blocks[place], side))
    lm_head = torch.nn.Linear(SIZE, VOCABULARY, bias=False)
    lm_head.weight.data = matrix(2)
    state = feature
    if isinstance(heads, Clover):
        for token in path:
            row = matrix(2)[token].tolist()
            state = gate(heads.gate, state, [v / math.hypot(*row) for v in row], cosine=False)
        return linear(lm_head, block(heads.blocks[place], state))
    assert isinstance(heads, Clover2)
    for token in path[1:]:
        state = gate(heads.gate, state, matrix(1)[token].tolist(), cosine=True)
    if place == 0:
        return linear(lm_head, rms(heads.head_norm, linear(heads.first, state)))
    return linear(lm_head, rms(heads.head_norm, linear(heads.later, state + matrix(1)[path[-1]].tolist())))


@pytest.mark.wide(but=["clover"])
@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_the_paper(kind: str) -> None:
    """Along every path of a small tree, in every row, the logits are those of an implementation in plain numbers."""
    heads, draw = made(kind), torch.Generator().manual_seed(5)
    features_B1D = torch.randn(2, 1, SIZE, generator=draw)
    last_B1 = torch.tensor([[4], [9]])
    parents = [[0], [0, 0], [1, 0, 1]]  # the parent of each node, counted among the nodes one place before
    states_BND, tokens_BN, paths = features_B1D, last_B1, [[[token]] for token in (4, 9)]
    for place in range(COUNT):
        if place:
            states_BND = states_BND.expand(-1, tokens_BN.shape[1], -1)[:, parents[place]]
            tokens_BN = torch.randint(VOCABULARY, (2, len(parents[place])), generator=draw)
            paths = [
                [paths[row][parent] + [int(tokens_BN[row, node])] for node, parent in enumerate(parents[place])]
                for row in range(2)
            ]
        logits_BNV, states_BND = heads.step(place, states_BND, tokens_BN)
        for row in range(2):
            for node, path in enumerate(paths[row]):
                found = logits_BNV[row, node if logits_BNV.shape[1] > 1 else 0]
                wanted = torch.tensor(expected(heads, features_B1D[row, 0].tolist(), path))
                torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.wide
@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_training_sees_what_drafting_sees(kind: str) -> None:
    """The logits of whole texts are, at each of their tokens, those of a path that begins there."""
    heads, draw = made(kind), torch.Generator().manual_seed(6)
    features_BTD, ids_BT = torch.randn(2, 7, SIZE, generator=draw), torch.randint(VOCABULARY, (2, 7), generator=draw)
    places = heads.unrolled(features_BTD, ids_BT)
    assert len(places) == COUNT
    for start in range(7 - COUNT):
        states_B1D = features_BTD[:, start : start + 1]
        for place, logits_BTV in enumerate(places):
            logits_B1V, states_B1D = heads.step(place, states_B1D, ids_BT[:, start + place : start + place + 1])
            torch.testing.assert_close(logits_BTV[:, start : start + 1], logits_B1V, atol=1e-5, rtol=1e-5)


@pytest.mark.wide
def test_new_heads_start_as_published() -> None:
    """A new block changes nothing; of a new gate Q and K are near the identity, and V is nothing."""
    heads = Medusa(SIZE, VOCABULARY, 2)
    x = torch.randn(3, SIZE)
    torch.testing.assert_close(heads.blocks[0](x), x)
    gate = Cosine(SIZE, 3)
    gate.reset_parameters()
    torch.testing.assert_close(gate(x, x), x)
    assert (gate.q.weight - torch.eye(SIZE)).abs().max() <= 0.01
