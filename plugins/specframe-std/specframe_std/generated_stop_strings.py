"""Stop strings in the generated text, as a stopping criterion of transformers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from transformers import StoppingCriteria

from specframe.errors import OptionError, literal
from specframe.text.stopping import StopStrings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class GeneratedStopStrings(StoppingCriteria):
    """Criterion that ends a row at the token that completes a stop string in the row's generated text.

    Prompts are not searched: with the stop string of two newlines a prompt that ends with one does not end at the first newline, as
    it does with ``StopStringCriteria`` of transformers. Each row ends by its own ids, with drafts and without.

    Args:
        tokenizer: the target's tokenizer.
        strings: a text or several, none of them empty.
        prompt_width: number of ids of each row's prompt, padding included: ``input_ids.shape[1]`` of the call.

    Raises:
        OptionError: strings that are none, or empty.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strings: str | Iterable[str], prompt_width: int) -> None:
        found = [strings] if isinstance(strings, str) else [*strings]
        if not found or not all(isinstance(one, str) and one for one in found):
            raise OptionError(f"strings: expected a text or several, none of them empty, got {literal(found)}")
        self._check, self._width = StopStrings(tokenizer, found), prompt_width

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """Return which rows of ids (B, S) end with their last token, bool (B,)."""
        ended = [self._check.first(row, self._width, 1) is not None for row in input_ids.cpu().numpy()]
        return torch.tensor(ended, device=input_ids.device)
