"""A model is run as a twin: the user's model stays as it is, in training mode, too, and what becomes of it is seen."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable
from typing import Any

import architectures
import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from accelerate.utils import convert_outputs_to_fp32
from planting import opened, stepped
from specframe_testing import harness, zoo
from transformers import PreTrainedModel

from specframe.model.runner import ModelRunner
from specframe.model.twin import NAME, made_of, twin
from specframe.pipeline import Pipeline
from specframe.reference import reference_decode

PROMPTS = harness.random_prompts([5, 9, 1], zoo.VOCABULARY, seed=6)


class Lora(torch.nn.Module):
    """A product of small matrices beside a linear layer, as adapters wrap it."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base, self.on = base, True
        self.down = torch.nn.Linear(base.in_features, 4, bias=False)
        self.up = torch.nn.Linear(4, base.out_features, bias=False)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, with the adapter's where that is on."""
        return self.base(given) + 3 * self.up(self.down(given)) if self.on else self.base(given)


def wrap(model: Any) -> None:
    """Put an adapter in."""
    attention = model.model.layers[1].self_attn
    attention.q_proj = Lora(attention.q_proj)


def switch(model: Any) -> None:
    """Switch the adapter off."""
    model.model.layers[1].self_attn.q_proj.on = False


def wrap_forward(model: Any) -> None:
    """Replace the forward of a module with parts by a function that calls the old one."""
    layer = model.model.layers[0]
    before = layer.forward

    def forward(*arguments: Any, **options: Any) -> Any:
        return before(*arguments, **options) * 0.5

    layer.forward = forward


def bind_forward(model: Any) -> None:
    """Replace it as libraries that move weights do."""
    layer = model.model.layers[0]

    def forward(module: Any, *arguments: Any, **options: Any) -> Any:
        return module.usual(*arguments, **options) * 0.5

    layer.usual, layer.forward = layer.forward, functools.partial(forward, layer)


class Halving(ModelHook):
    """A hook of accelerate that changes what a module returns."""

    def post_forward(self, module: torch.nn.Module, output: Any) -> Any:
        """Return the output, turned."""
        return output * -0.5 if isinstance(output, torch.Tensor) else output


def hook_in(model: Any) -> None:
    """Put hooks in that take the place of a forward and have its signature, around a part and around the whole."""
    for module in (model.model.layers[0].mlp, model):
        add_hook_to_module(module, Halving())


def replace_weight(model: Any) -> None:
    """Put another parameter in place of one."""
    head = model.lm_head
    head.weight = torch.nn.Parameter(head.weight.detach().flip(0))


def write(model: Any) -> None:
    """Write to a weight as whoever synchronises weights does."""
    model.lm_head.weight.data.copy_(model.lm_head.weight.data.flip(0))


def replace_buffer(model: Any) -> None:
    """Put other rotary factors in place of a model's."""
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq * 0.3


def hook(model: Any) -> None:
    """Put a hook in."""
    model.model.layers[0].register_forward_hook(lambda *given: given[-1] * -0.5)


def narrow(model: Any) -> None:
    """Narrow the model's sliding window."""
    model.config.sliding_window = 2


def replace_module(model: Any) -> None:
    """Put a module of the same kind in place of one."""
    model.model.layers[0].mlp = zoo.build("mistral", seed=5).model.layers[1].mlp


CHANGES: list[tuple[Callable[[Any], None], ...]] = [
    (wrap, switch), (wrap_forward,), (bind_forward,), (replace_weight,), (write,), (replace_buffer,), (hook,), (hook_in,),
    (narrow,), (replace_module,),
]  # fmt: skip


def reference(model: PreTrainedModel) -> list[list[int]]:
    """Return the reference decoder's tokens."""
    return [reference_decode(model, prompt, 9, {zoo.EOS}) for prompt in PROMPTS]


@pytest.mark.wide(but=["hook_in", "replace_module"])
@pytest.mark.parametrize("changes", CHANGES, ids=lambda some: "+".join(one.__name__ for one in some))
def test_a_change_between_two_runs_is_seen(changes: tuple[Callable[[Any], None], ...]) -> None:
    """After each change a pipeline that has decoded before gives the tokens of the model as it is."""
    model = zoo.build("mistral")
    pipe = harness.pipeline(model, zoo.good_draft(model), batch_size=2, draft_length=3)
    asked = harness.requests(PROMPTS, 9, {zoo.EOS})
    for change in (None, *changes):
        before = reference(model)
        if change is not None:
            change(model)
            assert reference(model) != before, "the change is one of the output"
        assert [one.token_ids for one in harness.decode(pipe, asked)] == reference(model)


def attention(model: Any) -> None:
    """Write to a weight that keys and values depend on."""
    model.model.layers[0].self_attn.v_proj.weight.data.mul_(-1)


@pytest.mark.wide(but=["window", "weight"])
@pytest.mark.parametrize(
    ("change", "kv"),
    [(wrap_forward, "slab"), (narrow, "slab"), (attention, "paged,block=4,share=on")],
    ids=["function", "window", "weight"],
)
def test_a_change_is_seen_by_an_engine_that_stays_open(change: Callable[[Any], None], kv: str) -> None:
    """An engine that had nothing left to decode has the tokens of the model as it is, and nothing kept of prompts before."""
    model = zoo.build("mistral")
    pipe = harness.pipeline(model, zoo.good_draft(model), batch_size=2, draft_length=3, kv=kv)
    engine = opened(pipe, ())
    for turn in range(2):
        if turn:
            change(model)
        for request in harness.requests(PROMPTS, 9, {zoo.EOS}):
            engine.add(request)
        found, errors = stepped(engine)
        assert errors == 0
        assert [found[index] for index in range(len(PROMPTS))] == reference(model)


@pytest.mark.wide
def test_the_users_model_stays_as_it_is() -> None:
    """In the middle of a round each module has its mode, its forward and its configuration, and gives its own output."""
    model = zoo.build("mistral").train()
    ids_BT = torch.tensor(PROMPTS[1:2])
    wanted, modules = model(ids_BT).logits, {name: vars(one).keys() for name, one in model.named_modules()}
    told = model.config.to_dict()
    seen = []

    def look(*_: Any) -> None:
        seen.append(threading.get_ident())
        assert model.config._attn_implementation == "sdpa"
        assert all(one.training for one in model.modules())
        assert {name: vars(one).keys() for name, one in model.named_modules()} == modules
        if len(seen) == 3:
            handle.remove()
            assert torch.equal(model(ids_BT).logits, wanted)

    handle = model.model.layers[1].register_forward_pre_hook(look)
    harness.decode(harness.pipeline(model, draft_length=2, drafter="prompt-lookup"), harness.requests(PROMPTS, 9))
    assert len(seen) == 3
    assert model.config.to_dict() == told


def test_a_twin_has_the_models_memory() -> None:
    """Parameters are the model's own; a twin is made anew for none of what both have."""
    model = zoo.build("qwen3")
    made, before = twin(model), made_of(model)
    mine, theirs = dict(made.named_parameters()), dict(model.named_parameters())
    assert mine.keys() == theirs.keys()
    assert all(mine[name] is theirs[name] for name in mine)
    assert made.config is not model.config
    replace_weight(model)
    assert made.lm_head.weight is model.lm_head.weight
    write(model)
    assert made_of(model) == before, "weights of either are those of both"
    hook(model)
    assert made.model.layers[0]._forward_hooks is model.model.layers[0]._forward_hooks
    model.lm_head = torch.nn.Identity()
    assert made_of(model) != before


def test_functions_around_a_forward_call_the_twins_modules() -> None:
    """What a function in place of a forward has bound or holds of the model is the twin's."""
    model = zoo.build("mistral")
    wrap_forward(model)
    layer: Any = twin(model).model.layers[0]
    (inner,) = (cell.cell_contents for cell in layer.forward.__closure__)
    assert inner.__self__ is layer
    bind_forward(model)
    layer = twin(model).model.layers[0]
    assert layer.forward.args[0] is layer
    (inner,) = (cell.cell_contents for cell in layer.usual.__closure__)
    assert inner.__self__ is layer


def test_a_method_around_a_forward_calls_the_twins_modules() -> None:
    """What a method in place of a forward holds of the model is the twin's: trainers have such methods compute the loss."""
    model: Any = zoo.build("mistral")
    usual = model.forward

    def forward(self: Any, *given: Any, **asked: Any) -> Any:
        return usual(*given, **asked)

    model.forward = types.MethodType(forward, model)
    made: Any = twin(model)
    assert made.forward.__self__ is made
    (inner,) = (cell.cell_contents for cell in made.forward.__func__.__closure__)
    assert inner.__self__ is made


class Evaluating(torch.nn.Linear):
    """A linear layer that is not to be called in training mode."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return its output."""
        assert not self.training, "a module of the model itself was called"
        return super().forward(input)


def test_a_trainers_mixed_precision_calls_the_twins_modules() -> None:
    """A forward that a trainer has patched, and accelerate then wrapped for mixed precision, runs no module in training mode."""
    model: Any = zoo.build("mistral")
    model.lm_head.__class__ = Evaluating
    usual = model.forward

    @functools.wraps(type(model).forward)
    def forward(self: Any, *given: Any, **asked: Any) -> Any:
        return usual(*given, **asked)

    cast = torch.autocast("cpu", torch.bfloat16)(forward)
    model.forward = types.MethodType(convert_outputs_to_fp32(cast), model)
    model.train()
    results = harness.decode(harness.pipeline(model, None), harness.requests([[5, 7, 9]], 4))
    assert len(results[0].token_ids) == 4


def test_a_model_without_transformers_interface_attends_as_it_is() -> None:
    """Falcon compares the name of its attention with sdpa, so a twin keeps that; others attend by our function."""
    names = [
        ModelRunner(architectures.build(name), "target").config._attn_implementation for name in ("falcon", "llama")
    ]
    assert names == ["sdpa", NAME]


def test_long_rotary_factors_are_the_runs_own() -> None:
    """A run leaves the model the factors of its own latest forward, which a model writes to its buffers."""
    factors = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.5, 2.0, 2.5], "factor": 4.0}
    factors |= {"long_factor": [4.0, 9.0, 2.0, 16.0], "original_max_position_embeddings": 24}
    model = zoo.build("phi3", rope_parameters=factors, original_max_position_embeddings=24)
    model(torch.ones(1, 30, dtype=torch.long))  # takes long ones
    before = [one.clone() for one in model.buffers()]
    harness.decode(harness.pipeline(model), harness.requests(harness.random_prompts([3], zoo.VOCABULARY), 6))
    assert all(torch.equal(*pair) for pair in zip(before, model.buffers(), strict=True))


FEW = harness.random_prompts([3, 7, 1], zoo.VOCABULARY)


def dropping():
    """Return a target and a draft model that drop half of their activations in training mode."""
    target = zoo.build("gpt2", attn_pdrop=0.5, resid_pdrop=0.5, embd_pdrop=0.5)
    return target, zoo.good_draft(target)


def ids(pipe: Pipeline) -> list[list[int]]:
    """Return what a pipeline makes of the prompts."""
    return [result.token_ids for result in pipe.generate(FEW, 8)]


@pytest.mark.wide
@pytest.mark.parametrize("checkpointing", [False, True])
def test_models_put_in_training_mode_after_the_pipeline_was_made(checkpointing: bool) -> None:
    """They decode without dropout, with gradient checkpointing too; every module is then in the mode it was in."""
    target, draft = dropping()
    pipe = Pipeline(target, draft, draft_length=3)
    expected = ids(pipe)
    target.train()
    target.transformer.ln_f.eval()
    draft.train()
    if checkpointing:
        target.gradient_checkpointing_enable()
        draft.gradient_checkpointing_enable()
    modes = [module.training for model in (target, draft) for module in model.modules()]
    assert ids(pipe) == expected
    assert [module.training for model in (target, draft) for module in model.modules()] == modes


def test_a_model_that_is_trained_stays_so_while_it_decodes() -> None:
    """The user's modules are in training mode in the middle of a run, too, and decode without dropout."""
    target, draft = dropping()
    expected = ids(Pipeline(target, draft, draft_length=3))
    target.train()
    running = Pipeline(target, draft, draft_length=3).generate(FEW, 8)
    first = next(running)
    assert all(module.training for module in target.modules())
    assert [first.token_ids, *(one.token_ids for one in running)] == expected
