"""The interface of heads that are being trained, and what their losses have in common.

Tensor names: B texts, T tokens but the last of each, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from specframe_heads.target import Target
from specframe_heads.training.continuations import ContinuationText
from specframe_heads.training.training_batches import Lesson

WRITTEN = torch.bfloat16
"""The precision of written heads, that of the published ones."""


class Learner(torch.nn.Module):
    """A head that is being trained for one target.

    Args:
        target: the model that it is for.
        places: the longest draft that it is trained for.
    """

    def __init__(self, target: Target, places: int) -> None:
        super().__init__()
        self.places, self._target = places, (target,)  # in a tuple: the target is not trained
        self.trained = False
        """Whether the weights that training begins with are those of a trained head."""

    @classmethod
    def like(cls, target: Target, head: Any, layers: tuple[int, ...], places: int) -> Self | None:
        """Return a learner with the modules of a head that decodes, or None if it cannot train such a head.

        Args:
            target: the model that the head is for.
            head: what the drafter runs.
            layers: the numbers of the hidden states that it reads.
            places: the longest draft to train for, where the head does not say it.
        """
        raise NotImplementedError

    def begin_with(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Begin with the weights of a trained head; raise ValueError where it is of another shape."""
        mine = {name: weight for name, weight in self.named_parameters() if weight.requires_grad}
        for name in sorted(mine.keys() | weights.keys()):
            sizes = [tuple(all_of[name].shape) if name in all_of else "none" for all_of in (mine, weights)]
            if sizes[0] != sizes[1]:
                raise ValueError(f"expected a head with {name} of shape {sizes[0]}, got {sizes[1]}")
        self.load_state_dict(weights, strict=False)
        self.trained = True

    @property
    def target(self) -> Target:
        """The model that the head is for."""
        return self._target[0]

    @property
    def layers(self) -> tuple[int, ...]:
        """The numbers of the target's hidden states that lessons need."""
        raise NotImplementedError

    def places_at(self, done: float) -> int:
        """Return how many places are trained when this part of all steps is done, from 0 to 1."""
        return self.places

    def loss(self, lesson: Lesson, places: int) -> torch.Tensor:
        """Return the loss of a lesson, of the first ``places`` places."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write the head as its format has it, in :data:`WRITTEN`."""
        raise NotImplementedError


def frequent(texts: Sequence[ContinuationText], count: int, vocabulary: int) -> torch.Tensor | None:
    """Return the ``count`` ids that targets wrote most often, in ascending order, or None if all there are."""
    if count >= vocabulary:
        return None
    written = torch.tensor([token for text in texts for token in text.ids[text.prompt :]])
    return torch.bincount(written, minlength=vocabulary).argsort(descending=True, stable=True)[:count].sort().values


def mean(values_BT: torch.Tensor, counts_BT: torch.Tensor) -> torch.Tensor:
    """Return the mean of the values that count."""
    return (values_BT * counts_BT).sum() / counts_BT.sum().clamp(min=1)


def soft_cross_entropy(logits_BTV: torch.Tensor, taught_BTV: torch.Tensor, counts_BT: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy with the distributions of the target's logits, where they count."""
    scores_BT = (taught_BTV.float().softmax(-1) * logits_BTV.float().log_softmax(-1)).sum(-1)
    return mean(-scores_BT, counts_BT)
