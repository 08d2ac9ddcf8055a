"""``examples/hub``, a folder for the hub: ``generate(..., custom_generate=FOLDER, trust_remote_code=True)`` drafts."""

from __future__ import annotations

import copy
import pickle
import shutil
from pathlib import Path

import generating
import pytest
import torch
import transformers
from specframe_testing import zoo
from transformers import AutoModelForCausalLM

from specframe.errors import UnknownNameError

ROOT = Path(__file__).parents[3]
HUB = ROOT / "examples" / "hub"
MODEL = zoo.build("qwen3")
DRAFT = zoo.good_draft(MODEL)
ASKED = {**generating.padded(), "max_new_tokens": 12, "do_sample": False}
FOLDER = {"custom_generate": str(HUB), "trust_remote_code": True}


@pytest.fixture(autouse=True)
def _modules(tmp_path_factory, monkeypatch):
    """Transformers copies the folder's module to a folder of the test, not to the user's cache."""
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))


def generated(model=MODEL, **asked):
    """Return what a model generates."""
    return model.generate(**{**ASKED, **asked})


@pytest.mark.wide(but=["assistant_model"])
@pytest.mark.parametrize("name", ["drafter", "assistant_model"])
def test_tokens_are_drafted_in_a_batch(name):
    """The tokens are those without drafts, and the draft model ran, under either name."""
    calls = []
    hook = DRAFT.register_forward_pre_hook(lambda *_: calls.append(1))
    drafted = generated(**FOLDER, **{name: DRAFT})
    hook.remove()
    assert torch.equal(drafted, generated())
    assert calls


def test_what_is_made_is_kept_for_the_same_arguments():
    """A second call has the loop of the first; other arguments have a loop of their own, and the former is closed."""
    generated(**FOLDER, drafter=DRAFT, draft_length=3, keep_cache=True)
    kept = MODEL._specframe_kept
    generated(**FOLDER, drafter=DRAFT, draft_length=3, keep_cache=True)
    assert MODEL._specframe_kept is kept
    closed = []
    close, kept.decode.close = kept.decode.close, lambda: closed.append(close())
    generated(**FOLDER, drafter=DRAFT, draft_length=2)
    assert MODEL._specframe_kept is not kept
    assert closed == [None]


@pytest.mark.wide
def test_copies_of_a_model_are_without():
    """A model that has been decoded can be copied and pickled."""
    plain = generated(**FOLDER)
    for one in (copy.deepcopy(MODEL), pickle.loads(pickle.dumps(MODEL))):
        assert one._specframe_kept is None
        assert torch.equal(generated(one, **FOLDER), plain)


@pytest.mark.wide
def test_a_repository_of_a_model_has_the_folder(tmp_path):
    """A model that is loaded from a repository with the folder drafts without being asked, by prompt lookup by default."""
    MODEL.save_pretrained(tmp_path)
    shutil.copytree(HUB / "custom_generate", tmp_path / "custom_generate")
    model = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    plain = generated()
    ids = ASKED["input_ids"]
    others = {name: value for name, value in ASKED.items() if name != "input_ids"}
    assert torch.equal(model.generate(ids, **others), plain)
    assert model._specframe_kept.asked == ("prompt-lookup", {})
    assert torch.equal(model.generate(ids, **others, drafter=DRAFT), plain)
    assert model._specframe_kept.asked == (DRAFT, {})


def test_wrong_arguments_are_refused():
    """What ``assisted`` refuses is refused by name, and what was kept stays."""
    generated(**FOLDER, drafter=DRAFT)
    kept = MODEL._specframe_kept
    with pytest.raises(UnknownNameError, match="did you mean 'ragged'"):
        generated(**FOLDER, drafter=DRAFT, align="raged")
    assert MODEL._specframe_kept is kept
    with pytest.raises(ValueError, match="draft_lengths"):
        generated(**FOLDER, drafter=DRAFT, draft_lengths=2)


def test_requirements_are_those_that_transformers_can_check(monkeypatch):
    """transformers compares each line with what is installed: an older specframe is reported."""
    version = transformers.dynamic_module_utils.importlib.metadata.version
    monkeypatch.setattr(
        transformers.dynamic_module_utils.importlib.metadata,
        "version",
        lambda name: "0.2.9" if name.startswith("specframe") else version(name),
    )
    with pytest.raises(ImportError, match=r"(?s)specframe>=0.3 \(installed: 0.2.9\).*specframe-std>=0.3 \(inst"):
        generated(**FOLDER)
