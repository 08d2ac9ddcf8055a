"""A head's own, smaller vocabulary: which token of the target each of its tokens is."""

from __future__ import annotations

import attrs
import torch
import torch.nn.functional as F

from specframe.errors import ModelError


@attrs.frozen(eq=False)
class DraftVocabulary:
    """The vocabulary of a head with V_d tokens, for a target with V."""

    ids: torch.Tensor | None
    """The target's id of each of the head's tokens, (V_d,), or None if they are the same."""
    size: int
    """V."""

    @classmethod
    def of(cls, whose: str, drafted: int, made_for: int, target: int, d2t: torch.Tensor | None) -> DraftVocabulary:
        """Return the mapping of a checkpoint.

        Args:
            whose: the head, for errors.
            drafted: the number of tokens that its head has logits for.
            made_for: the number of tokens of the target that it was made for, as its configuration says.
            target: the number of the target's token ids, which may differ by padding.
            d2t: as the file has it, which are *offsets*: target id = draft id + d2t[draft id].

        Raises:
            ModelError: the vocabulary is smaller and there is no mapping, or it leads outside of the target's.
        """
        if d2t is None:
            if drafted != made_for:
                raise ModelError(
                    f"{whose} has logits for {drafted} of {made_for} tokens and no mapping: expected a tensor d2t that says which"
                )
            return cls(None, target)
        if d2t.shape != (drafted,):
            raise ModelError(
                f"d2t of {whose}: expected {drafted} offsets, one for each token, got shape {tuple(d2t.shape)}"
            )
        ids = torch.arange(drafted, device=d2t.device) + d2t.long()
        if int(ids.min()) < 0 or int(ids.max()) >= target or len(ids.unique()) < drafted:
            read_as_ids = " (they look like the ids themselves)" if looks_like_ids(d2t, target) else ""
            raise ModelError(
                f"d2t of {whose}: expected offsets from each draft id to another id of the target, 0 to {target - 1}, got ids "
                f"from {int(ids.min())} to {int(ids.max())}, {len(ids.unique())} of {drafted} different{read_as_ids}"
            )
        return cls(ids, target)

    def to(self, device: torch.device) -> DraftVocabulary:
        """Return the mapping on a device."""
        return self if self.ids is None else attrs.evolve(self, ids=self.ids.to(device))

    def full(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits (..., V) from those of the head, (..., V_d): minus infinity for tokens that it does not have."""
        if self.ids is None and logits.shape[-1] == self.size:
            return logits
        if self.ids is None:
            return F.pad(logits, (0, self.size - logits.shape[-1]), value=float("-inf"))  # cuts what is padding
        made = logits.new_full((*logits.shape[:-1], self.size), float("-inf"))
        return made.index_copy_(-1, self.ids, logits)


def looks_like_ids(d2t: torch.Tensor, target: int) -> bool:
    """Return whether a mapping has ids of the target, each once, where it should have offsets."""
    ids = d2t.long()
    return bool((ids >= 0).all() and (ids < target).all() and len(ids.unique()) == len(ids))
