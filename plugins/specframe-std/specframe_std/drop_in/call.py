"""The arguments that transformers' ``generate`` prepares for a decoding loop."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import attrs
import torch
from transformers import MaxTimeCriteria
from transformers import generation as hf

from specframe.errors import OptionError
from specframe_std.processor_check import ROW_BY_ROW, splits

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

DECODING = (hf.GenerationMode.GREEDY_SEARCH, hf.GenerationMode.SAMPLE, hf.GenerationMode.ASSISTED_GENERATION)
"""Modes of ``generate`` that can be drafted for."""

BEAMS = (hf.GenerationMode.BEAM_SEARCH, hf.GenerationMode.BEAM_SAMPLE)
"""Modes that transformers' own loop of the same name decodes."""


@attrs.frozen(eq=False, slots=False)
class Call:
    """One call of ``generate``: its arguments for the decoding loop."""

    model: PreTrainedModel
    input_ids: torch.Tensor
    """Ids of each row's prompt, padding included, (B, S); (B, 0) if the prompt is given as embeddings."""
    processors: hf.LogitsProcessorList
    criteria: hf.StoppingCriteriaList
    config: GenerationConfig
    inputs: dict[str, Any]
    """Other inputs of the model, such as mask, positions and cache."""

    def __len__(self) -> int:
        return len(self.input_ids)

    @functools.cached_property
    def real_BS(self) -> torch.Tensor:
        """Whether an id is a token, not padding, bool (B, S), from the attention mask."""
        mask_BS = self.inputs.get("attention_mask")
        return torch.ones_like(self.input_ids, dtype=torch.bool) if mask_BS is None else mask_BS.bool()

    @functools.cached_property
    def prompts(self) -> list[list[int]]:
        """Each row's ids without the padding on the left."""
        counts = self.real_BS.sum(1).tolist()
        return [row[len(row) - count :] for row, count in zip(self.input_ids.tolist(), counts, strict=True)]

    @property
    def trial_inputs(self) -> tuple[torch.Tensor, int]:
        """The ids and the size of the vocabulary that processors are tried with."""
        return self.input_ids.to(self.model.device), int(self.model.config.get_text_config().vocab_size)

    @functools.cached_property
    def split(self) -> list[bool]:
        """Whether each processor holds something for each row, so that a part of it has to be called for each."""
        return [splits(one, *self.trial_inputs) for one in self.processors]

    @property
    def pad(self) -> int:
        """The id that follows a row's end."""
        return 0 if self.config._pad_token_tensor is None else int(self.config._pad_token_tensor)

    @property
    def new(self) -> int:
        """Most tokens generated for each row."""
        lengths = [one.max_length for one in self.criteria if isinstance(one, hf.MaxLengthCriteria)]
        return min([self.config.max_length, *lengths]) - self.input_ids.shape[1]

    @property
    def ends_rows(self) -> bool:
        """Whether each row ends on its own. Without eos ids ``generate`` goes on with all rows until all have ended."""
        return any(hasattr(one, "eos_token_id") for one in self.criteria)

    @property
    def in_steps(self) -> bool:
        """Whether the criteria have to be called once per step, with all rows. Otherwise each depends on one row's ids alone."""
        whole = (hf.MaxLengthCriteria, MaxTimeCriteria)
        return any(type(one) not in ROW_BY_ROW or not (self.ends_rows or type(one) in whole) for one in self.criteria)

    @property
    def mode(self) -> hf.GenerationMode:
        """The mode of ``generate``; greedy search and sampling without drafts are one loop of transformers."""
        mode = self.config.get_generation_mode()
        return hf.GenerationMode.SAMPLE if mode in DECODING else mode

    def require_decoding(self, streamed: bool) -> None:
        """Raise :class:`OptionError` naming the options that are not supported, such as streams of beams."""
        mode = self.config.get_generation_mode()
        asked = {
            mode.value: mode not in (*DECODING, *BEAMS),
            f"a streamer with {mode.value}": streamed and mode in BEAMS,
            "assistant_early_exit": self.config.assistant_early_exit,
        }
        if unsupported := [name for name, wanted in asked.items() if wanted]:
            raise OptionError(f"assisted generation in batches does not support {', '.join(unsupported)}")


@contextlib.contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Have a model in evaluation mode inside the block, as drafted calls run it, and each module back in its own mode after it."""
    training = [one for one in model.modules() if one.training]
    try:
        for one in training:
            one.training = False
        yield
    finally:
        for one in training:
            one.training = True
