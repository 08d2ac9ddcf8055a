"""A model in training mode decodes as one in evaluation mode, and stays in training mode."""

from __future__ import annotations

import pytest
from specframe_testing import harness, zoo

from specframe.pipeline import Pipeline

PROMPTS = harness.random_prompts([3, 7, 1], zoo.VOCABULARY)


def pair():
    """Return a target and a draft model that drop half of their activations in training mode."""
    target = zoo.build("gpt2", attn_pdrop=0.5, resid_pdrop=0.5, embd_pdrop=0.5)
    return target, zoo.good_draft(target)


def ids(pipe: Pipeline) -> list[list[int]]:
    """Return what a pipeline makes of the prompts."""
    return [result.token_ids for result in pipe.generate(PROMPTS, 8)]


@pytest.mark.wide
@pytest.mark.parametrize("checkpointing", [False, True])
def test_models_put_in_training_mode_after_the_pipeline_was_made(checkpointing: bool) -> None:
    """They decode without dropout, with gradient checkpointing too; every module is then in the mode it was in."""
    target, draft = pair()
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
    target, draft = pair()
    expected = ids(Pipeline(target, draft, draft_length=3))
    target.train()
    running = Pipeline(target, draft, draft_length=3).generate(PROMPTS, 8)
    first = next(running)
    assert all(module.training for module in target.modules())
    assert [first.token_ids, *(one.token_ids for one in running)] == expected
