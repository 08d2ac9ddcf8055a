"""The facts of a target that a head has to fit, and the parts of it that heads borrow."""

from __future__ import annotations

import attrs
import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from specframe.errors import ModelError
from specframe.models.vocabulary import VOCABULARY_SLACK


@attrs.frozen(eq=False)
class Target:
    """A target, as heads see it. A borrowed part is the target's own tensor: nothing is copied."""

    model: PreTrainedModel

    @property
    def layers(self) -> int:
        """The number of its layers, which is also the number of its last hidden state."""
        return int(self.model.config.get_text_config().num_hidden_layers)

    @property
    def hidden(self) -> int:
        """The size of its hidden states."""
        return int(self.model.config.get_text_config().hidden_size)

    @property
    def vocabulary(self) -> int:
        """The number of its token ids."""
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def context(self) -> int:
        """Its longest sequence, in tokens, or 0 if it has no bound."""
        return int(getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or 0)

    @property
    def device(self) -> torch.device:
        """The device of its parameters."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of its parameters."""
        return self.model.dtype

    def embedding(self, whose: str, size: int) -> torch.Tensor:
        """Return its embedding, (V, D), for a head without one of its own; ``size`` is the D that the head needs."""
        return self._borrowed(whose, "embedding", self.model.get_input_embeddings(), size)

    def head(self, whose: str, size: int) -> torch.Tensor:
        """Return the weight of its language modelling head, (V, D)."""
        return self._borrowed(whose, "language modelling head", self.model.get_output_embeddings(), size)

    def _borrowed(self, whose: str, part: str, module: torch.nn.Module | None, size: int) -> torch.Tensor:
        weight = getattr(module, "weight", None)
        if weight is None or weight.shape[1] != size:
            got = "none" if weight is None else f"one of size {weight.shape[1]}"
            raise ModelError(
                f"{whose} has no {part} of its own: expected the target to have one of size {size}, got {got}"
            )
        return in_one_piece(weight.detach())


def in_one_piece(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight as a plain tensor; all ranks gather one that is split over them, and each of them has all of it then."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def require_hidden(whose: str, expected: int, target: Target) -> None:
    """Raise :class:`ModelError` unless a head was made for hidden states of the target's size."""
    if expected != target.hidden:
        raise ModelError(
            f"{whose} is a head for another target: expected a target with hidden states of size {expected}, got {target.hidden}"
        )


def require_vocabulary(whose: str, expected: int, target: Target) -> None:
    """Raise :class:`ModelError` unless a head was made for about as many tokens as the target has: embeddings may be padded."""
    if abs(expected - target.vocabulary) > VOCABULARY_SLACK:
        raise ModelError(
            f"{whose} is a head for another target: expected a target with {expected} tokens, or up to "
            f"{VOCABULARY_SLACK} more or fewer, got {target.vocabulary}"
        )
