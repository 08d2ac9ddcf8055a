"""Layers that attend in chunks or to chosen tokens, and models that count positions themselves: exact in chains and trees.

Rows are of unequal length throughout.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import architectures
import pytest
import torch
from generating import padded
from specframe_std.counted_positions import OwnPositions, alibi, distance_bias
from specframe_std.drafters.draft_model import ModelDrafter
from specframe_testing import harness, zoo
from transformers import PreTrainedModel

import specframe
from specframe.errors import ModelError
from specframe.model.runner import ModelRunner
from specframe.text.sampling import Sampling

SLIDING = {
    f"swa_{name}": size
    for size, names in {
        4: ("num_attention_heads", "num_key_value_heads"),
        8: ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim"),
        12: ("head_dim",),
    }.items()
    for name in names
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("bloom", {}),
    "falcon-alibi": ("falcon", {"alibi": True}),
    "mpt": ("mpt", {}),
    "gpt_neo": ("gpt_neo", {}),
    "bart": ("bart", {}),
    "whisper": ("whisper", {}),
    "roformer": ("roformer", {}),
    "llama4": ("llama4_text", {}),
    "deepseek_v32": ("deepseek_v32", {}),
    "glm_moe_dsa": ("glm_moe_dsa", {"indexer_types": ["full", "shared"]}),
    "dots3_note": ("dots3_note_text", {"layer_types": ["indexed_attention", "sliding_attention"], **SLIDING}),
}
"""ALiBi of three kinds, masks of a model's own, learned, sinusoidal and rotary positions that are counted, chunks; layers that
choose what they attend to: all of them, for themselves and for the next one, and beside sliding windows."""
WITH_STATES: dict[str, tuple[str, dict[str, Any]]] = {
    "inkling": ("inkling_text", {}),
    "inkling2": ("inkling2_text", {}),
    "inkling-unscaled": ("inkling_text", {"log_scaling_n_floor": None}),
}
"""A learned bias by distance, with scores that a query's position scales and without. Layers keep states as well, so that they
draft chains alone; trees for them are those of ``test_state_kinds.py``."""
ALIGNMENTS = ("ragged", "eqspec", "exspec", "rollback")
TREES: dict[str, dict[str, Any]] = {"static": {"branch": "3/2/1"}, "dynamic": {"tree": "dynamic", "nodes": 16}}
PROMPTS, NEW = zoo.eos_prompts((1, 14, 2, 7, 3)), 6


@functools.cache
def models(name: str, seed: int = 0) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a target and a draft model that often agrees with it."""
    kind, options = (MODELS | WITH_STATES)[name]
    if kind not in architectures.NAMES or kind in architectures.FAULTY | architectures.OTHERWISE:
        pytest.skip(f"the transformers installed has {kind} in another way")
    target = architectures.build(kind, seed, **options)
    return target, zoo.good_draft(target, noise=0.02)


def check(name: str, align: str, tree: str | None, accept: str = "greedy", seed: int = 0, **options: Any) -> None:
    """Compare every token; some draft tokens are accepted, unless the alignment keeps the fewest of all rows."""
    target, draft = models(name, seed)
    drafter = ModelDrafter(**TREES[tree]) if tree else ModelDrafter()
    length = "auto" if tree else 4
    options = {"batch_size": 3, "draft_length": length, "seed": 3, **options}
    pipe = harness.pipeline(target, draft, drafter=drafter, align=align, accept=accept, **options)
    if accept == "greedy":
        harness.check(pipe, harness.requests(PROMPTS, NEW, {zoo.EOS, 3}))
    else:
        plain = harness.pipeline(target, None, accept=accept, batch_size=2, seed=3)
        wanted, found = (one.generate(PROMPTS, NEW, sampling=Sampling(temperature=0.9)) for one in (plain, pipe))
        assert [one.token_ids for one in found] == [one.token_ids for one in wanted]
    assert align == "rollback" or pipe.report.mean_acceptance_length > 1.0


@pytest.mark.wide(but=["roformer", "glm_moe_dsa"])
@pytest.mark.parametrize("place", range(len(MODELS)), ids=list(MODELS))
def test_trees_equal_the_target(place: int) -> None:
    """Nodes of a tree are where their path says, not where their slots are; each alignment by turns."""
    check([*MODELS][place], ALIGNMENTS[place % 4], [*TREES][place % 2])


@pytest.mark.wide(but=["flex"])
@pytest.mark.parametrize("attention", ["masked", "flex"])
def test_chunks_in_every_attention(attention: str) -> None:
    """What is left out of a chunk by mask tensors, flex attention leaves out by blocks."""
    check("llama4", "ragged", "static", attention=attention)


@pytest.mark.wide
def test_most_models_are_told_nothing() -> None:
    """Models that take positions, and nothing else of them, are run as they are."""
    for name in ("llama", "gpt2", "gemma3_text", "falcon", "opt"):
        assert OwnPositions(architectures.build(name)).counted is None


def test_the_bias_goes_by_orders() -> None:
    """A slot's bias is that of its token's order, in each row; that of a slot without a token is finite."""

    def usual(mask_BS: torch.Tensor, heads: int, dtype: torch.dtype) -> torch.Tensor:
        slopes_H11 = torch.tensor([0.5, 0.25])[:, None, None]
        return (slopes_H11 * (mask_BS.cumsum(-1) - 1)).to(dtype)

    key_index_BS = torch.tensor([[0, 1, 2, -1], [-1, 0, 1, 1]])
    found = alibi(usual, 2, key_index_BS, 4, torch.zeros(2, 1, 3, 4), 2, torch.float32).view(2, 2, 4)
    assert found[:, 0].tolist() == [[0, 0.5, 1, 0], [0, 0, 0.5, 0.5]]
    assert torch.equal(found[:, 1], found[:, 0] / 2)
    shared = alibi(usual, 2, key_index_BS[:1], 4, torch.zeros(2, 1, 3, 4), 2, torch.float32).view(2, 2, 4)
    assert torch.equal(shared[1], found[0])


def test_a_learned_bias_goes_by_the_distance_of_orders() -> None:
    """A query has the bias of each slot by how far its token is before the query's own, in each row, at the query's scale."""

    def usual(states_BTHE: torch.Tensor, queries_T: torch.Tensor, keys_S: torch.Tensor) -> torch.Tensor:
        distance_TS = queries_T[:, None] - keys_S
        return states_BTHE.transpose(1, 2).gather(3, distance_TS.expand(len(states_BTHE), 1, -1, -1))

    by_distance_BTHE = torch.tensor([[[[1.0, 2, 3]], [[10, 20, 30]]]]).repeat(2, 1, 1, 1)
    positions_BT, key_index_BS = torch.tensor([[2, 3], [5, 5]]), torch.tensor([[0, 1, 2, 3], [5, 4, 2, -1]])
    distance_BTS, scale_BT = positions_BT[..., None] - key_index_BS[:, None], torch.tensor([[1.0, 1], [2, 1]])
    bias = SimpleNamespace(rel_extent=3)
    found = distance_bias(usual, bias, distance_BTS, scale_BT, by_distance_BTHE, None, None)
    assert found[0, 0].tolist() == [[3, 2, 1, 0], [0, 30, 20, 10]]
    assert found[1, 0].tolist() == [[2, 4, 0, 0], [10, 20, 0, 0]]


def test_attention_without_masks_is_refused_beside_a_bias() -> None:
    """A backend that takes a mask's place has no room for a bias, which one sentence says; unasked it is not taken."""
    target, draft = models("inkling")
    told = r"^attention 'flex' cannot be had for .*, because its layers add a bias of their own to scores"
    with pytest.raises(ModelError, match=told):
        harness.decode(harness.pipeline(target, draft, attention="flex"), harness.requests(PROMPTS, NEW))


def test_a_model_that_hears_no_positions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions that reach no module would be right for rows that begin at slot 0 alone."""
    target = architectures.build("roformer")
    monkeypatch.setattr(
        "specframe_std.counted_positions.embed", lambda usual, positions, given, *_, flat: usual(given).repeat(2, 1)
    )
    with pytest.raises(
        ModelError, match=r"gives the same logits whatever positions it is given: expected a model that takes"
    ):
        _ = ModelRunner(target, "target").kv_shapes


@pytest.mark.wide(but=["gpt_neo-False", "mpt-False", "inkling-True"])
@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("bloom", False),
        ("gpt_neo", False),
        ("mpt", False),
        ("bart", True),
        ("inkling", True),
        ("inkling-unscaled", False),
    ],
)
def test_inside_generate(name: str, plain: bool, recwarn: pytest.WarningsRecorder) -> None:
    """Padded prompts have the tokens of ``generate``; nothing is drafted where the model itself counts padding as tokens."""
    target, draft = models(name)
    inputs = {
        **padded(PROMPTS[:3]),
        "do_sample": False,
        "use_cache": True,
        "max_new_tokens": NEW,
        "pad_token_id": zoo.EOS,
    }
    expected = target.generate(**inputs)
    assert torch.equal(target.generate(**inputs, custom_generate=specframe.assisted(draft, 3)), expected)
    assert any("nothing is drafted" in str(one.message) for one in recwarn) == plain


def test_a_context_ends_where_positions_do() -> None:
    """Drafts beyond the last position that a model embeds are none that it is fed."""
    target = architectures.build("whisper", max_target_positions=16, max_source_positions=16)
    draft = zoo.good_draft(target)
    asked = harness.requests([PROMPTS[1][:11], PROMPTS[0]], 12, {zoo.EOS})
    harness.check(harness.pipeline(target, draft, batch_size=2, draft_length=4), asked)


@pytest.mark.wide
@pytest.mark.skipif(bool(architectures.OTHERWISE), reason="indexers are written in another way")
def test_an_indexer_that_reads_the_cache_is_refused() -> None:
    """Positions that transformers' own cache would hold are nowhere in a store: it is one sentence."""
    sizes = {"budget": 4, "compress_ratio": 2, "n_heads": 2, "kv_heads": 1, "head_dim": 8}
    kinds = ["linear_attention", "indexed_attention", "linear_attention"]
    options = {f"indexer_{name}": size for name, size in sizes.items()}
    target = architectures.build("qwen4_exp_text", num_hidden_layers=3, layer_types=kinds, **options)
    with pytest.raises(
        ModelError, match=r"\(Qwen4ExpForCausalLM\) has layers of type indexed_attention whose indexer reads"
    ):
        ModelRunner(target, "target")
