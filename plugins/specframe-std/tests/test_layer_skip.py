"""Drafts of the target with sublayers left out, on the target's own cache: lossless, and no token is kept or read twice."""

from __future__ import annotations

import copy
import functools
import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from specframe_std.drafters.layer_skip import LayerSkip, every_second
from specframe_std.kv.dynamic import Dynamic
from specframe_std.partial.sublayers import Sublayer, read_sublayers, without_sublayers, write_sublayers
from specframe_testing import fakes, harness, suite_device, zoo
from specframe_testing.device.device_memory import MEMORY
from transformers import DynamicCache, PreTrainedModel

from specframe.contracts.cache import KVShape, Placement
from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.requests import Request
from specframe.contracts.round import Batch
from specframe.errors import CompositionError, ModelError, OptionError

LENGTHS, NEW = (5, 1, 17, 9, 3, 8), 10
ALIGNMENTS = ("ragged", "eqspec", "exspec", "rollback")
ADDS = {
    "attn": ("self_attn.o_proj", "self_attn.out_proj", "attn.c_proj"),
    "mlp": ("mlp.down_proj", "mlp.experts.down_proj", "mlp.c_proj", "fc2"),
}
"""The modules by which each kind of sublayer adds to the hidden states."""
OWN = ("layer-skip,skip=attn:0+mlp:1", "window,sink=2,recent=4", "early-exit,layers=1")
"""The drafters that run a part of the target, or on a part of its keys, on its own cache."""


@functools.cache
def target(name: str) -> PreTrainedModel:
    return zoo.build(name)


@functools.cache
def emptied(name: str, skip: str) -> PreTrainedModel:
    """Return a model of which some sublayers have zeros in place of the weights by which they add: they add nothing."""
    model = copy.deepcopy(target(name))
    for one in read_sublayers("skip", skip):
        weights = [
            weight
            for path, weight in model.named_parameters()
            if f".{one.layer}." in path and any(f".{one.layer}.{part}" in path for part in ADDS[one.kind])
        ]
        assert weights
        with torch.no_grad():
            for weight in weights:
                weight.zero_()
    return model


def asked(new: int = NEW) -> list[Request]:
    """Return ragged requests with eos ids, which are pad ids, inside prompts."""
    prompts = harness.random_prompts(LENGTHS, zoo.VOCABULARY, seed=1)
    prompts[2][3] = prompts[0][-1] = prompts[4][0] = zoo.EOS
    return harness.requests(prompts, new, {zoo.EOS, 3})


def piped(model: PreTrainedModel, skip: str = "attn:0+mlp:1", **options: Any) -> Any:
    return harness.pipeline(
        model, None, **{"drafter": f"layer-skip,skip={skip}", "batch_size": 3, "draft_length": 3, **options}
    )


@pytest.mark.wide
@pytest.mark.parametrize(
    ("place", "name"), [pytest.param(*case, marks=[pytest.mark.slow] * (case[0] % 2)) for case in enumerate(zoo.NAMES)]
)
def test_equals_the_reference(place: int, name: str) -> None:
    """Every architecture, under two alignments each and with all checks on, gives the reference decoder's tokens."""
    for align, skip in zip(
        (ALIGNMENTS[place % 4], ALIGNMENTS[(place + 1) % 4]), ("attn:0", "attn:1+mlp:0"), strict=True
    ):
        pipe = piped(target(name), skip, align=align, check=True, batch_size=(1, 3, 8)[place % 3])
        harness.check(pipe, asked())
        assert pipe.report.num_draft_tokens > 0


@pytest.mark.wide(but=["qwen3-attn:0-rollback"])
@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize(("name", "skip"), [("qwen3", "attn:0"), ("gpt2", "mlp:0+attn:1"), ("gemma3", "attn:0-2")])
def test_the_cache_is_never_wrong(name: str, skip: str, align: str) -> None:
    """Where what is left out adds nothing, every draft is accepted, however rows are moved and left out."""
    schedule = "same-length,window=5" if align == "exspec" else "continuous"
    pipe = piped(emptied(name, skip), skip, align=align, schedule=schedule)
    harness.check(pipe, harness.requests([one.prompt_ids for one in asked()], NEW, set()))
    assert pipe.report.num_draft_tokens == pipe.report.num_accepted_draft_tokens > 0


class Noting(LayerSkip):
    """Notes each row's tokens and the draft that follows them."""

    def __init__(self, skip: str) -> None:
        super().__init__(skip)
        self.noted: list[tuple[list[int], list[int]]] = []

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return a draft within the budget."""
        draft = super().propose(batch, budget)
        for row, drafted in enumerate(draft.tokens_BN.tolist()):
            self.noted.append((batch.tokens[row, : batch.lengths[row]].tolist(), drafted))
        return draft


@pytest.mark.wide
@pytest.mark.parametrize("align", ["ragged", "eqspec"])
@pytest.mark.parametrize(("name", "skip"), [("qwen3", "attn:0"), ("opt", "mlp:0"), ("glm4", "attn:1+mlp:1")])
def test_drafts_are_those_of_a_model_without_the_sublayers(name: str, skip: str, align: str) -> None:
    """A plain model whose sublayers add nothing says the same tokens after the target's own keys and values."""
    drafter = Noting(skip)
    harness.check(piped(target(name), drafter=drafter, align=align, schedule=None), asked())
    drafted = [(given, made) for given, made in drafter.noted if made]
    assert len(drafted) > 10
    for given, made in drafted:
        assert continued(target(name), emptied(name, skip), given, len(made)) == made


@torch.inference_mode()
def continued(model: PreTrainedModel, draft: PreTrainedModel, given: list[int], count: int) -> list[int]:
    """Return the tokens that one model chooses after another has read all given ones but the last."""
    cache, made, fed = DynamicCache(config=model.config), list[int](), torch.tensor([given])
    if len(given) > 1:
        model(input_ids=fed[:, :-1], past_key_values=cache, use_cache=True)
    fed = fed[:, -1:]
    for _ in range(count):
        fed = draft(input_ids=fed, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
        made.append(int(fed))
    return made


def test_memory_can_be_bounded() -> None:
    """Memory profiling has no numbers to show whether a layer does more than add its sublayers to its input; the run itself has."""
    harness.check(piped(target("qwen3"), memory="8MB", batch_size=1), asked()[:1])


@pytest.mark.wide
@pytest.mark.parametrize("own", OWN)
def test_memory_that_runs_out_halves_the_batch(own: str) -> None:
    """A halved batch begins again with the same part of the target on the new cache."""
    with suite_device.running_on("sim"):
        pipe = piped(target("qwen3"), drafter=own, batch_size=6)
        gc.collect()  # what earlier tests have left would be freed later, and the limit be too high
        MEMORY.peak[0] = MEMORY.used[0]
        harness.check(pipe, asked())
        pipe.close()  # the stores that stay open for the next run
        gc.collect()
        used, peak = MEMORY.used[0], MEMORY.peak[0]
        with MEMORY.limited(used + (peak - used) * 2 // 3), pytest.warns(RuntimeWarning, match="memory ran out"):
            harness.check(pipe, asked())


def test_layers_of_a_growing_cache_may_lack_what_a_draft_left_out() -> None:
    """Columns that one layer has and another lacks are moved where they are, and dropped before the next ones are written."""
    store = Dynamic().open([KVShape(1, 1, 1, torch.float32)] * 2, 1, 8, torch.device("cpu"))
    sequences: Any = [SimpleNamespace(gone=False, parent=None)]
    store.arrange(sequences)

    def placed(columns: int) -> Placement:
        last = torch.tensor([[columns - 1]])
        return Placement(last, last, last, torch.arange(columns)[None])

    def written(column: int, layers: tuple[int, ...]) -> None:
        told = placed(column + 1)
        store.expect(told)
        for layer in layers:
            value = torch.full((1, 1, 1, 1), float(column))
            store.write(layer, value, value)

    for column in range(2):
        written(column, (0, 1))
    written(2, (1,))
    store.move(torch.tensor([[1, 2]]))
    told = placed(2)
    assert [tensor.flatten().tolist() for tensor in store._tensors[2:]] == [[1.0, 2.0]] * 2
    store.expect(told)
    one = torch.full((1, 1, 1, 1), 9.0)
    assert [store.write(layer, one, one).keys.flatten().tolist() for layer in (0, 1)] == [[1.0, 9.0]] * 2


def test_the_target_is_left_as_it_is() -> None:
    """The model without the sublayers is made of the target's own modules, and the target keeps all that it has."""
    model: Any = copy.deepcopy(target("gpt2"))
    ids = torch.tensor([[5, 6, 7]])
    before, modules = model(ids).logits, [*model.modules()]
    made: Any = without_sublayers(model, read_sublayers("skip", "attn:1+mlp:0"), "the target")
    assert [*model.modules()] == modules
    assert not any("forward" in vars(module) for module in modules)
    assert torch.equal(model(ids).logits, before)
    assert not torch.allclose(made(ids).logits, before)
    assert made.transformer.h[0].attn is model.transformer.h[0].attn
    assert made.transformer.h[1].attn.c_attn is model.transformer.h[1].attn.c_attn
    assert made.lm_head is model.lm_head


@pytest.mark.wide
@pytest.mark.parametrize("text", ["", "3", "attn", "attn:", "attn:5-3", "ffn:3", "attn:-1", "mlp:10000", "attn:1+", 3])
def test_another_text_is_refused(text: object) -> None:
    """What is no text of sublayers is named in one sentence."""
    with pytest.raises(OptionError, match=r"^skip: expected layers of attn and mlp, as in attn:3-7\+9\+mlp:5, got "):
        LayerSkip(text)  # type: ignore[arg-type]


@pytest.mark.wide
def test_without_an_option_every_second_layer_is_left_out() -> None:
    """The first and the last layer stay, but for targets of two layers, which have no other."""
    assert write_sublayers(every_second(8)) == "attn:1+3+5+mlp:1+3+5"
    assert every_second(2) == {Sublayer("attn", 1), Sublayer("mlp", 1)}


def test_what_cannot_be_is_refused() -> None:
    """A layer that is not there, models that are not made of such layers, and an alignment that cannot share: one sentence each."""
    with pytest.raises(
        ModelError, match=r"has layers 0 to 1: expected sublayers of these to be left out, got attn:2-3$"
    ):
        harness.check(piped(target("qwen3"), "attn:1-3"), asked())
    with pytest.raises(ModelError, match=r"does not keep its layers in one list"):
        harness.check(piped(fakes.fake_target()), asked())
    later = zoo.build("opt", do_layer_norm_before=False)
    with pytest.raises(ModelError, match=r"layer 0 of .* does more than add its attention and its MLP to its input"):
        without_sublayers(later, read_sublayers("skip", "attn:0"), "the target")
    with pytest.raises(
        CompositionError, match=r"needs 'share' to be offered, and alignment 'masking' does not offer it"
    ):
        piped(target("qwen3"), align="masking")
