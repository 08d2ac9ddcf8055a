"""Pairs whose memory is profiled beforehand and counted, wide enough that a few numbers here and there are little."""

from __future__ import annotations

import functools
from typing import Any

import attrs
import torch
from specframe_memory.allocations import Allocations
from specframe_memory.footprint import Footprint, Workload
from specframe_memory.memory_bound import plans_of
from specframe_memory.memory_plan import Ladder
from specframe_memory.memory_profile import DryRun
from specframe_memory.meta_parts import hollow
from specframe_std.policies.fixed_length import FixedLength
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specframe import Pipeline
from specframe.contracts.drafts import Budget
from specframe.contracts.requests import Request
from specframe.contracts.round import Batch
from specframe.engine.parts import parts_of
from specframe.errors import ModelError
from specframe.model.attention import masks

VOCABULARY = 1500
WIDE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "eos_token_id": None,
    "pad_token_id": None,
}
NARROW = {**WIDE, "hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "num_hidden_layers": 1}
BOTH_KINDS = ["sliding_attention", "full_attention"]
AT_ONCE = ["hybrid_sliding", "hybrid"]
STATES_AND_ALL = ["linear_attention", "full_attention"]
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3", {**WIDE, "num_hidden_layers": 1}),
    "deep": ("qwen3", WIDE),
    "draft": ("qwen3", NARROW),
    "llama": ("llama", {**WIDE, "num_key_value_heads": 4, "num_hidden_layers": 1}),
    "gemma3": ("gemma3_text", {**WIDE, "sliding_window": 24, "layer_types": BOTH_KINDS}),
    "experts": ("qwen3_moe", {**WIDE, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}),
    "inkling": (
        "inkling_text",
        {
            **WIDE,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 2,
            "swa_head_dim": 32,
            "sliding_window_size": 24,
            "layer_types": AT_ONCE,
            "rel_extent": 64,
            "log_scaling_n_floor": 3,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
        },
    ),
    "qwen3.5": (
        "qwen3_5_text",
        {
            **WIDE,
            "layer_types": STATES_AND_ALL,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
        },
    ),
}


@functools.cache
def model(name: str) -> PreTrainedModel:
    """Return a model, the same one every time."""
    kind, options = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(name))
        made: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options)).eval()
    return made


@attrs.frozen
class Case:
    """A pair and what it decodes: all rows are read twice, the second time with prompts of unequal lengths."""

    target: str
    draft: str | None
    load: Workload
    options: dict[str, Any]

    @property
    def prompts(self) -> list[list[int]]:
        """The prompts."""
        rows, most = self.load.rows, self.load.prompt
        each = [[1 + row] * most for row in range(rows)]  # equal ones would be read once
        return each + [one[: most - row % 2 * (most * 2 // 5)] for row, one in enumerate(each)]

    @property
    def models(self) -> list[PreTrainedModel]:
        """The models."""
        return [model(self.target)] + ([] if self.drafting is None else [self.drafting])

    @property
    def drafting(self) -> PreTrainedModel | None:
        """The draft model, or None if there is none."""
        return model("draft") if self.draft is not None and ("draft" in self.draft or "model" in self.draft) else None

    def pipeline(self, **options: Any) -> Pipeline:
        """Return a pipeline whose models have not been tried yet."""
        given = {"batch_size": self.load.rows, "generation_config": None, **self.options, **options}
        pipe = Pipeline(model(self.target), self.drafting if self.draft == "draft" else self.draft, **given)
        pipe.parts.draft = self.drafting
        return pipe

    def least(self, prompts: list[list[int]], new: int, ladders: dict[bool, Ladder], **asked: Any) -> int:
        """Return the fewest bytes that a run of these prompts is decoded within: one more is refused by name.

        What its memory profiling finds is kept with the fallback configurations.
        """
        pipe = self.pipeline(memory=1)
        plans_of(pipe.parts).ladders = ladders
        try:
            list(pipe.generate(prompts, new, **asked))
        except ModelError as error:
            return int(str(error).partition("at least ")[2].partition(" bytes")[0].replace(",", ""))
        raise AssertionError("a byte suffices")

    def planned(self, *like: Request) -> Footprint:
        """Return what a run takes at most, as profiled beforehand, of greedy requests or of those that are like others."""
        masks._STAIRCASES.clear()  # larger ones, of what the process has planned before, would count
        recipe = self.pipeline().recipe
        draft = hollow(self.drafting) if self.drafting is not None else None
        named = draft if self.draft == "draft" else self.draft
        parts = parts_of(attrs.evolve(recipe, target=hollow(model(self.target)), drafter=named))
        parts.draft = draft
        run = DryRun(recipe, parts)
        return run.footprint(self.load, like=like)

    def hold(self, counter: Allocations) -> None:
        """Have a counter know the models' weights."""
        for one in self.models:
            counter.hold([*one.parameters(), *one.buffers()], "weights")

    def require_told(self) -> tuple[Footprint, Pipeline]:
        """Assert that a run takes no more than is told; return that, and the pipeline."""
        told, counter = self.planned(), Allocations()
        pipe = self.counted(counter)
        assert counter.peak.total <= told.total
        return told, pipe

    def counted(self, counter: Allocations, **options: Any) -> Pipeline:
        """Decode under a counter, and return the pipeline."""
        masks._STAIRCASES.clear()
        pipe = self.pipeline(**options)
        self.hold(counter)
        with counter:
            list(pipe.generate(self.prompts, self.load.longest - self.load.prompt))
        return pipe


class Paused(FixedLength):
    """A draft-length policy that drafts nothing for some rounds, and then 3 tokens in one."""

    offers = frozenset()

    def __init__(self, pause: int) -> None:
        super().__init__(3)
        self._pause, self._rounds = pause, 0

    def start(self, run: Any) -> None:
        """Nothing was decoded yet."""
        self._rounds = 0

    def budget(self, batch: Batch) -> Budget:
        """Return the budget."""
        self._rounds += 1
        return Budget(0) if self._rounds % (self._pause + 1) else self.maximum


CASES = {
    "slab": Case("qwen3", "draft", Workload(4, 120, 126), {"draft_length": 4, "kv": "slab"}),
    "columns": Case("llama", "draft", Workload(6, 64, 70), {"draft_length": 3, "align": "eqspec"}),
    "windows": Case("gemma3", None, Workload(3, 90, 100), {"kv": "paged"}),
    "experts": Case("experts", "draft", Workload(3, 40, 48), {"draft_length": 3, "kv": "slab"}),
    "biases": Case("inkling", "draft", Workload(4, 70, 76), {"draft_length": 3, "kv": "slab"}),
    "states": Case("qwen3.5", "draft", Workload(4, 70, 80), {"draft_length": 3, "kv": "slab"}),
}
