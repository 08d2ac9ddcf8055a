"""Outputs of ``generate`` in addition to the tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput

from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Result
from specframe.contracts.roles import Observer
from specframe.devices.out_of_memory import with_room
from specframe.observe.logprobs import concatenate
from specframe_std.drop_in.call import Call
from specframe_std.drop_in.model_outputs import asks_outputs, read_outputs

if TYPE_CHECKING:
    from transformers import GenerationConfig


class StepOutputs(Observer):
    """Observer that keeps the target's logits and scores of every generated token, if ``generate`` was asked for them."""

    def __init__(self, config: GenerationConfig) -> None:
        wanted = config.return_dict_in_generate
        self._kinds = [kind for kind in ("scores", "logits") if wanted and getattr(config, f"output_{kind}")]
        self._kept: dict[str, dict[int, list[torch.Tensor]]] = {kind: defaultdict(list) for kind in self._kinds}

    def round(self, report: RoundReport) -> None:
        """Keep float32 copies of the logits and scores of the gained tokens."""
        for kind in self._kinds:
            given_BTV = report.scores_BTV if kind == "scores" else report.logits_BTV
            assert given_BTV is not None
            for row, sequence in enumerate(report.sequences):
                values_TV = with_room(
                    lambda given_TV: given_TV.to(torch.float32, copy=True), given_BTV[row, : report.gained[row]]
                )
                self._kept[kind][sequence.request.index].extend(values_TV.split(1))

    def keeps(self, kind: str) -> bool:
        """Return whether ``generate`` was asked for "scores" or "logits"."""
        return kind in self._kinds

    def at(self, kind: str, step: int, ended: Collection[int]) -> torch.Tensor:
        """Return the values of all rows at a step, (B, V), 0 for rows that have ended."""
        rows = [self._kept[kind][row] for row in sorted(self._kept[kind])]
        blank_1V = torch.zeros_like(rows[0][0])
        return concatenate([blank_1V if row in ended else values[step] for row, values in enumerate(rows)])

    def steps(self, kind: str, lengths: list[int]) -> tuple[torch.Tensor, ...] | None:
        """Return one (B, V) tensor for each generated token, or None if ``generate`` was not asked for them.

        Args:
            kind: "scores" or "logits".
            lengths: number of each row's tokens. After a row's last token its values are 0.
        """
        if not self.keeps(kind):
            return None
        values = [concatenate(self._kept[kind][row][:length]) for row, length in enumerate(lengths)]
        return tuple(torch.nn.utils.rnn.pad_sequence(values).unbind(0))


def output(call: Call, results: list[Result], kept: StepOutputs) -> torch.Tensor | GenerateDecoderOnlyOutput:
    """Return the result of ``generate``: prompts and continuations, padded on the right."""
    lengths = [len(result.token_ids) for result in results]
    new_BN = call.input_ids.new_full((len(results), max(lengths)), call.pad)
    for row, result in enumerate(results):
        new_BN[row, : len(result.token_ids)] = torch.tensor(result.token_ids)
    sequences = torch.cat([call.input_ids, new_BN], dim=1)
    told = read_outputs(call, sequences) if asks_outputs(call) else {}
    if not call.config.return_dict_in_generate:
        return sequences
    return GenerateDecoderOnlyOutput(
        sequences=sequences,  # type: ignore[arg-type]
        scores=kept.steps("scores", lengths),  # type: ignore[arg-type]
        logits=kept.steps("logits", lengths),  # type: ignore[arg-type]
        **told,
    )
