"""Scans over the tokens of a block, as chains or trees: the mathematics of layers with a recurrent state, and nothing of a model.

A state is a matrix per head. Each token decays it and adds a product of a key and a value. Written out along a token's path, its
output is a sum over its ancestors, each decayed by what lies between: a product with a masked matrix for all tokens of the block at
once, whatever their tree. The delta rule's values depend on one another. They solve a triangular system, the one of "Parallelizing
Linear Transformers with the Delta Rule over Sequence Length" (arXiv 2406.06484), restricted to pairs of ancestors.

Tensor names carry their shape: B rows, T tokens, H heads, K entries of a key, V of a value; the last two name the state's matrix.
"""

from __future__ import annotations

import torch


def lower(width: int, device: torch.device) -> torch.Tensor:
    """Return which places of a chain a place sees, (1, T, T): itself and those before it."""
    return torch.ones(1, width, width, dtype=torch.bool, device=device).tril()


def summed(decay_BHTD: torch.Tensor, sees_BTT: torch.Tensor | None) -> torch.Tensor:
    """Return the logarithm of the decay since the state, of each token: the sum over its path."""
    if sees_BTT is None:
        return decay_BHTD.cumsum(2)
    return sees_BTT[:, None].to(decay_BHTD.dtype) @ decay_BHTD


def between(decay_BHTD: torch.Tensor, sees_B1TT: torch.Tensor) -> torch.Tensor:
    """Return the decay from each token's ancestors (last but one axis) to the token, (B, H, T, T, D), 0 from all others."""
    differences = decay_BHTD[:, :, :, None] - decay_BHTD[:, :, None]
    return differences.masked_fill(~sees_B1TT[..., None], -torch.inf).exp()


def products(left_BHTK: torch.Tensor, right_BHTK: torch.Tensor, decays_BHTTD: torch.Tensor) -> torch.Tensor:
    """Return the products of each token's vector with those of its ancestors, decayed, (B, H, T, T)."""
    if decays_BHTTD.shape[-1] == 1:  # one decay for all entries of a key
        return (left_BHTK @ right_BHTK.mT) * decays_BHTTD[..., 0]
    return (left_BHTK[:, :, :, None] * right_BHTK[:, :, None] * decays_BHTTD).sum(-1)


def linear_scan(
    query_BHTK: torch.Tensor,
    key_BHTK: torch.Tensor,
    value_BHTV: torch.Tensor,
    decay_BHTD: torch.Tensor,
    state_BHKV: torch.Tensor,
    sees_BTT: torch.Tensor | None = None,
    beta_BHT1: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs (B, H, T, V), and what each token adds to the state as its key's value, (B, H, T, V).

    Args:
        query_BHTK: what reads the state after each token.
        key_BHTK: the tokens' keys.
        value_BHTV: the tokens' values.
        decay_BHTD: logarithms of the decays, at most 0: one per head (D is 1), or one per entry of the key (D is K).
        state_BHKV: the states before the block.
        sees_BTT: which places see which, (1 or B, T, T), for a tree, or None for a chain.
        beta_BHT1: the strength of the delta rule, which adds what a value differs by from what the state has for its key, or None
            to add values as they are.
    """
    total_BHTD = summed(decay_BHTD, sees_BTT)
    seen_B1TT = (lower(key_BHTK.shape[2], key_BHTK.device) if sees_BTT is None else sees_BTT)[:, None]
    decays_BHTTD, decayed_BHTD = between(total_BHTD, seen_B1TT), total_BHTD.exp()
    if beta_BHT1 is not None:
        value_BHTV = beta_BHT1 * (
            value_BHTV - (key_BHTK * decayed_BHTD) @ state_BHKV
        )  # less what the state has for the key
        if key_BHTK.shape[2] > 1:  # the value of a token by itself depends on no other
            system_BHTT = beta_BHT1 * products(key_BHTK, key_BHTK, decays_BHTTD)
            value_BHTV = torch.linalg.solve_triangular(system_BHTT, value_BHTV, upper=False, unitriangular=True)
    output_BHTV = (query_BHTK * decayed_BHTD) @ state_BHKV + products(query_BHTK, key_BHTK, decays_BHTTD) @ value_BHTV
    return output_BHTV, value_BHTV


def state_after(
    key_BHTK: torch.Tensor,
    added_BHTV: torch.Tensor,
    decay_BHTD: torch.Tensor,
    state_BHKV: torch.Tensor,
    stands_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the states after the tokens of a chain: each adds its key's value, and decays what is there.

    Args:
        key_BHTK: the tokens' keys.
        added_BHTV: what they add, as :func:`linear_scan` returns it.
        decay_BHTD: logarithms of the decays.
        state_BHKV: the states before the block.
        stands_BT: which tokens are taken in, the first ones of each row, or None for all.
    """
    if stands_BT is not None:
        stands_B1T1 = stands_BT[:, None, :, None]
        decay_BHTD, added_BHTV = decay_BHTD * stands_B1T1, added_BHTV * stands_B1T1
    total_BHTD = decay_BHTD.cumsum(2)
    last_BH1D = total_BHTD[:, :, -1:]
    decayed, keys = state_BHKV * last_BH1D.exp().mT, (key_BHTK * (last_BH1D - total_BHTD).exp()).mT
    # no second tensor of a state's size
    decayed.view(-1, *decayed.shape[2:]).baddbmm_(keys.flatten(0, 1), added_BHTV.flatten(0, 1))
    return decayed


def by_head(vectors_BTHK: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the vectors of each of ``heads`` heads, (B, H, T, K): several may share one of fewer."""
    vectors_BHTK = vectors_BTHK.transpose(1, 2)
    shared = heads // vectors_BHTK.shape[1]
    return vectors_BHTK if shared == 1 else vectors_BHTK.repeat_interleave(shared, 1)
