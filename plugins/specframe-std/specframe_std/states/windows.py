"""Windows of convolutions: the inputs of a row's last tokens, which the next ones are convolved with.

Tensor names carry their shape: B rows, T tokens of a block, C channels of a convolution, W places of its window.
"""

from __future__ import annotations

import functools

import torch


def summed_taps(taps: tuple[torch.Tensor, ...], weight_CW: torch.Tensor, bias_C: torch.Tensor | None) -> torch.Tensor:
    """Return the convolution (B, C, T) of each channel with itself, added up from a window's first place to the token.

    Args:
        taps: the inputs at each place of the tokens' windows, (B, C, T) each.
        weight_CW: of the places.
        bias_C: added last.
    """
    output_BCT = functools.reduce(torch.add, (tap * weight_CW[:, place, None] for place, tap in enumerate(taps)))
    return output_BCT if bias_C is None else output_BCT + bias_C[:, None]


def slid(window_BCW: torch.Tensor, inputs_BTC: torch.Tensor, counts_B: torch.Tensor) -> torch.Tensor:
    """Return the windows after the first tokens of each row."""
    full_BTC = torch.cat([window_BCW.mT, inputs_BTC.to(window_BCW.dtype)], dim=1)
    places_BW = counts_B[:, None] + torch.arange(window_BCW.shape[-1], device=counts_B.device)
    return full_BTC.gather(1, places_BW[..., None].expand(-1, -1, full_BTC.shape[-1])).mT


def adjoining(full_BCT: torch.Tensor, real_BT: torch.Tensor) -> torch.Tensor:
    """Return the window and the inputs of a block, (B, C, W + T), the window moved over the padding to a row's first token."""
    places_T = torch.arange(full_BCT.shape[-1], device=full_BCT.device)
    padding_B1 = (~real_BT).sum(1, keepdim=True)
    moved_BT = places_T < padding_B1 + full_BCT.shape[-1] - real_BT.shape[-1]
    sources_BT = torch.where(moved_BT, (places_T - padding_B1).clamp(min=0), places_T)
    return full_BCT.gather(2, sources_BT[:, None].expand_as(full_BCT))


def along_paths(full_BCT: torch.Tensor, parents_BT: torch.Tensor, width: int) -> torch.Tensor:
    """Return the last ``width`` inputs on the path to each token, the token itself last, (B, C, T, width).

    Args:
        full_BCT: the window, and the inputs of the block.
        parents_BT: the parents in the block, (1 or B, T); -1: the window's last place.
        width: of the convolution.
    """
    before = full_BCT.shape[-1] - parents_BT.shape[-1]
    places_T = torch.arange(full_BCT.shape[-1], device=full_BCT.device)
    window_BW = (places_T[:before] - 1).clamp(min=0).expand(len(parents_BT), -1)
    above_BT = torch.cat([window_BW, parents_BT + before], dim=1)
    path = [places_T[before:].expand(len(parents_BT), -1)]
    for _ in range(width - 1):
        path.insert(0, above_BT.gather(1, path[0]))
    paths_BTW = torch.stack(path, dim=-1).expand(len(full_BCT), -1, -1)
    rows_B11 = torch.arange(len(full_BCT), device=full_BCT.device)[:, None, None]
    return full_BCT.mT[rows_B11, paths_BTW].permute(0, 3, 1, 2)
