"""The kinds of state of transformers' models: exact in chains and trees, with all moves, forks and prefill chunks."""

from __future__ import annotations

from typing import Any

import architectures
import pytest
import torch
from products import crossed
from specframe_std.states import scans
from specframe_testing import fakes, harness, suite_device, zoo
from specframe_testing.conformance import StateKindSuite
from specframe_testing.conformance.decoding_suite import RIGHT, usual_requests
from specframe_testing.device.rounds import watched_rounds
from transformers import PreTrainedModel

import specframe
from specframe.model.runner import ModelRunner
from specframe.plugins.registry import registry

KINDS = {
    "compressed-convolution": "zaya",
    "dynamic-convolution": "inkling2_text",
    "gated-delta": "qwen3_5_text",
    "kimi-delta": "kimi_linear",
    "lightning": "minimax",
    "mamba1": "jamba",
    "mamba2": "nemotron_h",
    "short-convolution": "lfm2",
}
"""A model of each kind."""

SEVERAL = {"inkling_text": {"short-convolution"}, "inkling2_text": {"short-convolution", "dynamic-convolution"}}
"""The kinds of models whose layers have several states each, with keys and values."""

MODELS = {
    kind: name for kind, name in (*KINDS.items(), ("short-convolutions", "inkling_text")) if architectures.known(name)
}
"""All of them that the transformers installed has."""

WITHOUT_EXPERTS: dict[str, dict[str, Any]] = {"inkling_text": {"mlp_layer_types": ["dense"] * 2}}
"""How models are made without the experts that cannot be the same to the bit: these have products with matrices of their own."""

each_kind = pytest.mark.parametrize("name", MODELS.values(), ids=MODELS)
one_kind_by_default = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, id=kind, marks=[pytest.mark.slow] * (kind != "gated-delta"))  # what it shows is the store's
        for kind, name in MODELS.items()
    ],
)


@pytest.mark.wide
def test_every_kind_is_tried() -> None:
    """Each registered kind has a model in this file."""
    assert set(registry().names("state kind")) == set(KINDS)


@pytest.mark.wide
@each_kind
def test_layers_are_known_by_their_kind(name: str) -> None:
    """A model's layers are known by one kind, and each has its number; states are numbered in the order of layers."""
    model = architectures.build(name)
    layers = ModelRunner(model, "target").state_layers
    assert layers
    assert all(layer.module.layer_idx == layer.number for layer in layers.values())
    assert [*layers] == [*range(len(layers))]
    numbers = [layer.number for layer in layers.values()]
    assert numbers == sorted(numbers)
    wanted = SEVERAL.get(name) or {kind for kind, one in KINDS.items() if one == name}
    assert {layer.called.split("'")[1] for layer in layers.values()} == wanted


@pytest.mark.wide
@each_kind
def test_chains(name: str) -> None:
    """Drafts that are right for some tokens, by turns, and mixed batches: tokens are the reference decoder's."""
    model = architectures.build(name)
    asked = usual_requests(model)
    drafter = fakes.ScriptedDrafter(harness.truth(model, asked), RIGHT["by-turns"])
    harness.check(harness.pipeline(model, drafter, batch_size=3, draft_length=4), asked)
    pipe = harness.pipeline(model, drafter, schedule="continuous,piece=4", batch_size=2, draft_length=3)
    harness.check(pipe, asked)


@pytest.mark.wide(but=["zaya-{0: 3, 1: 0, 2: 2, 3: 1, 4: 3}", "inkling2_text-None", "jamba-None"])
@pytest.mark.parametrize(
    ("name", "right"), crossed([*MODELS.values()], [{0: 3, 1: 0, 2: 2, 3: 1, 4: 3}, None]), ids=str
)
def test_trees(name: str, right: Any) -> None:
    """Nodes go on from their parents' states and windows, and the accepted path alone is taken in."""
    model = architectures.build(name)
    asked = usual_requests(model)
    drafter = fakes.ScriptedTree(harness.truth(model, asked), right)
    harness.check(harness.pipeline(model, drafter, batch_size=3, draft_length=3), asked)


@pytest.mark.wide
@one_kind_by_default
def test_the_targets_first_layers_draft_on_its_states(name: str) -> None:
    """Early exit drafts on the target's own states and leaves them as they were."""
    pipe = harness.pipeline(
        architectures.build(name), None, drafter="early-exit,layers=1", batch_size=3, draft_length=3
    )
    harness.check(pipe, usual_requests(pipe.target_model))
    assert pipe.report.num_draft_tokens > 0


@pytest.mark.wide(but=["inkling_text"])
@pytest.mark.parametrize("name", [name for name in ("inkling_text", "zaya") if architectures.known(name)])
def test_attention_that_is_left_out_takes_its_states_along(name: str) -> None:
    """Where states are kept inside of a layer's attention, the target drafts without both, exactly."""
    pipe = harness.pipeline(
        architectures.build(name), None, drafter="layer-skip,skip=attn:1", batch_size=3, draft_length=3
    )
    harness.check(pipe, usual_requests(pipe.target_model))
    assert pipe.report.num_draft_tokens > 0


@pytest.mark.wide
@one_kind_by_default
def test_as_on_a_gpu(name: str) -> None:
    """On a device as strict as CUDA a target and a draft model with states are exact, wait once a round and copy nothing."""
    target = architectures.build(name)
    asked = usual_requests(target)
    with suite_device.running_on("sim"), watched_rounds() as watched:
        draft = zoo.good_draft(target)
        pipe = harness.pipeline(target, draft, batch_size=2, draft_length=3, observers=[watched])
        harness.check(pipe, asked)
        watched.rounds.clear()  # a model is tried out in its first run
        harness.check(pipe, asked)
    assert max(one.waits for one in watched.rounds) == 1
    assert max(one.copies for one in watched.steady) == 0


@pytest.mark.wide
def test_inside_generate() -> None:
    """Drafts for a left-padded batch inside ``generate`` leave the tokens that it gives by itself."""
    model = architectures.build("qwen3_5_text")
    draft = zoo.good_draft(model)
    ids = torch.tensor(harness.random_prompts([9, 9, 9], zoo.VOCABULARY))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    given: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 10, "do_sample": False}
    assert torch.equal(
        model.generate(ids, **given), model.generate(ids, custom_generate=specframe.assisted(draft), **given)
    )


@pytest.mark.wide(but=["qwen3_5_text", "nemotron_h"])
@pytest.mark.parametrize("name", ["qwen3_5_text", "nemotron_h", "jamba"])
def test_padding_adds_nothing_whatever_is_convolved(name: str) -> None:
    """Where a convolution has a bias, padding before a row's first token is no zero behind it, and still leaves no trace."""
    model = architectures.build(name)
    for module in model.modules():
        if isinstance(module, torch.nn.Conv1d):
            module.bias = torch.nn.Parameter(torch.full((module.out_channels,), 0.5))
    harness.check(harness.pipeline(model, None, batch_size=3), usual_requests(model))


@pytest.mark.wide(but=["zamba2"])
@pytest.mark.parametrize("name", ["nemotron_h", "zamba2"])
def test_steps_of_prompts_are_bounded_and_others_are_not(name: str) -> None:
    """These models bound the steps of a prompt's tokens alone: so it is where the prompt's last token is fed with a draft.

    With a bound that many steps fall below, the logits depend on which tokens it holds for.
    """
    model = architectures.build(name)
    for module in model.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = (0.8, float("inf"))
    asked = usual_requests(model)
    drafter = fakes.ScriptedDrafter(harness.truth(model, asked), RIGHT["by-turns"])
    harness.check(harness.pipeline(model, drafter, batch_size=3, draft_length=4), asked)


@pytest.mark.wide(but=["True-per-head"])
@pytest.mark.parametrize("entries", [1, 4], ids=["per-head", "per-entry"])
@pytest.mark.parametrize("delta", [False, True])
def test_a_scan_is_its_recurrence(entries: int, delta: bool) -> None:
    """Outputs and states are those of the recurrence, one token after the other along each path."""
    torch.manual_seed(0)
    rows, heads, width, size = 2, 3, 6, 4
    query, key, value = (torch.randn(rows, heads, width, size) for _ in range(3))
    decay, beta = -torch.rand(rows, heads, width, entries), torch.rand(rows, heads, width, 1) if delta else None
    before = torch.randn(rows, heads, size, size)
    parents = [-1, 0, 0, 1, 2, 4]
    sees = torch.eye(width, dtype=torch.bool)
    states, wanted = dict[int, torch.Tensor](), []
    for place, parent in enumerate(parents):
        if parent >= 0:
            sees[place] |= sees[parent]
        state = states.get(parent, before) * decay[:, :, place, :, None].exp()
        added = value[:, :, place, None]
        if beta is not None:
            added = beta[:, :, place, None] * (added - key[:, :, place, None] @ state)
        states[place] = state + key[:, :, place, :, None] * added
        wanted.append((query[:, :, place, None] @ states[place])[:, :, 0])
    given = query, key, value, decay, before
    found, _ = scans.linear_scan(*given, sees_BTT=sees[None], beta_BHT1=beta)
    torch.testing.assert_close(found, torch.stack(wanted, 2))
    for path in ([0], [0, 2], [0, 2, 4, 5]):
        one, keys, values, decays = (part[:, :, path] for part in given[:4])
        along = None if beta is None else beta[:, :, path]
        _, added = scans.linear_scan(one, keys, values, decays, before, beta_BHT1=along)
        torch.testing.assert_close(scans.state_after(keys, added, decays, before), states[path[-1]])


@pytest.mark.slow
class TestEveryKind(StateKindSuite):
    """Each kind passes the suite of kinds, on a small model."""

    temperature = 3.0

    @pytest.fixture(autouse=True, params=MODELS.values(), ids=MODELS)
    def _of_a_kind(self, request: pytest.FixtureRequest) -> None:
        self.name = request.param

    def model(self) -> PreTrainedModel:
        """Return the model of the kind."""
        return architectures.build(self.name, **WITHOUT_EXPERTS.get(self.name, {}))
