"""The model ``hf-specframe`` of lm-eval: its model ``hf``, which decodes with drafts. Needs the extra ``lm-eval``.

``python -m specframe_std.lm_eval`` is lm-eval's own command with this model; to import the module registers it, too.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils_hf import MultiTokenEOSCriteria
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteriaList

from specframe import assisted
from specframe.errors import OptionError, SpecframeError
from specframe.plugins.recipe import DEFAULTS
from specframe.text.stopping import UNFINISHED
from specframe_std.generated_stop_strings import GeneratedStopStrings


@register_model("hf-specframe")
class SpecframeLM(HFLM):
    """lm-eval's model ``hf`` with drafts: the same answers.

    Args:
        given, options: the arguments of ``hf``.
        drafter: a loaded draft model, a directory or hub id of one, or a drafter's name with options.
        draft_length, align, accept, kv, keep_cache: as :func:`specframe.assisted` takes them.
    """

    def __init__(
        self,
        *given: Any,
        drafter: Any = None,
        draft_length: Any = DEFAULTS.draft_length,
        align: Any = DEFAULTS.align,
        accept: Any = DEFAULTS.accept,
        kv: Any = DEFAULTS.kv,
        keep_cache: bool = False,
        **options: Any,
    ) -> None:
        if drafter is None:
            raise OptionError("drafter: hf-specframe expected a draft model or a drafter among model_args, got none")
        self._assisted = assisted(drafter, draft_length, align=align, accept=accept, kv=kv, keep_cache=keep_cache)
        super().__init__(*given, **options)
        if self.backend != "causal":
            raise OptionError(
                f"pretrained: hf-specframe expected a decoder-only model, got the backend {self.backend!r}"
            )

    def _model_generate(self, context: torch.Tensor, max_length: int, stop: list[str], **options: Any) -> Any:
        return super()._model_generate(context, max_length, stop=stop, **{"custom_generate": self._decode, **options})

    def _decode(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **inputs: Any,
    ) -> Any:
        """Decode a call of ``generate``, each row to its own end where lm-eval's answers are then the same.

        lm-eval decodes all rows until each of them has one and the same stop string, and cuts the texts afterwards.
        """
        whole = [one for one in stopping_criteria if isinstance(one, MultiTokenEOSCriteria)]
        strings = [one.sequence for one in whole]
        if strings and generation_config.num_beams == 1 and self._cuts_early(strings, generation_config):
            own = GeneratedStopStrings(self.tokenizer, strings, input_ids.shape[1])
            stopping_criteria = StoppingCriteriaList([*(one for one in stopping_criteria if one not in whole), own])
        return self._assisted(model, input_ids, logits_processor, stopping_criteria, generation_config, **inputs)

    def _cuts_early(self, strings: Sequence[str], config: GenerationConfig) -> bool:
        """Return whether lm-eval cuts a text at the first of the stop strings, whatever comes after it.

        A stop string that a special token has to do with ends all rows, but is not in the text, which lacks special tokens.
        """
        eos = [config.eos_token_id] if isinstance(config.eos_token_id, int) else config.eos_token_id or []
        added = getattr(self.tokenizer, "added_tokens_decoder", None)  # mistral-common's tokenizers have none
        silent = [one.content for token, one in (added or {}).items() if one.special and token not in eos]
        return (
            self.think_end_token is None
            and added is not None
            and all(one and UNFINISHED not in one for one in strings)
            and not self.tokenizer.clean_up_tokenization_spaces
            and not any(overlap(one, other) for one in strings for other in silent)
            and not any(rivals(strings))
        )


def overlap(one: str, other: str) -> bool:
    """Return whether two strings can share characters of a text."""
    return one in other or other in one or runs_into(one, other) or runs_into(other, one)


def runs_into(one: str, other: str) -> bool:
    """Return whether ``other`` can begin inside ``one``, after its beginning, and end after it."""
    return any(one.endswith(other[:count]) for count in range(1, min(len(one), len(other))))


def rivals(strings: Sequence[str]) -> Iterable[bool]:
    """Yield, for pairs of stop strings, whether the later to end can move the cut that the earlier made.

    lm-eval cuts a text at each string in turn, at the strings' order.
    """
    for one, other in itertools.permutations(strings, 2):
        yield 0 < one.find(other) < len(one) - len(other)  # one begins before the other, and goes on after it
    for first, then in itertools.combinations(strings, 2):
        yield runs_into(then, first)  # the first is cut before the second is looked for


def main() -> None:
    """Run lm-eval's command; an error of specframe is one sentence."""
    try:
        cli_evaluate()
    except SpecframeError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
