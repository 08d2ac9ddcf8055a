"""Executors: the one of this process, and a third party's that is asked where ranks could part."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from specframe_testing import fakes, harness, zoo
from specframe_testing.conformance import ExecutorSuite

from specframe import Pipeline
from specframe.engine.local_engine import LocalEngine
from specframe.errors import ContractError, ModelError, OptionError, UnknownNameError
from specframe.plugins.recipe import Recipe
from specframe.text.sampling import Sampling

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)
PROMPTS = harness.random_prompts((6, 1, 9, 4), 61, seed=5)


class Asked:
    """Decodes in this process and broadcasts nothing."""

    offers = frozenset[str]()

    def open(self, recipe: Any, parts: Any, observers: Any, clock: Any) -> LocalEngine:
        return LocalEngine(recipe, parts, observers, clock, self)

    def broadcast(self, value: Any) -> Any:
        return value


@pytest.mark.wide(but=["test_equals_reference[eqspec]"])
class TestLocal(ExecutorSuite):
    def make(self) -> str:
        return "local"


@pytest.mark.wide(but=["test_equals_reference[exspec]"])
class TestStranger(ExecutorSuite):
    def make(self) -> Asked:
        return Asked()


@pytest.mark.wide
@pytest.mark.parametrize(
    ("executor", "error", "told"),
    [
        ("nowhere", UnknownNameError, "unknown executor 'nowhere'"),
        (5, OptionError, "executor: expected a name or an object with broadcast, offers, open, got 5"),
        (
            types.SimpleNamespace(open=len),
            OptionError,
            "executor: expected a name or an object with broadcast, offers, open, .*without broadcast, offers",
        ),
        (
            types.SimpleNamespace(open=len, broadcast=len, offers=frozenset({"ranks"})),
            OptionError,
            "executor: expected SimpleNamespace, which offers 'ranks', to have barrier, end, rank .*RankedExecutor",
        ),
    ],
    ids=["unknown", "number", "half", "less than it offers"],
)
def test_what_is_no_executor_is_refused(executor: Any, error: type[Exception], told: str) -> None:
    """A name that nobody registered, or an object without the members of an executor, ends in one sentence."""
    with pytest.raises(error, match=told):
        harness.pipeline(TARGET, DRAFT, executor=executor)


def raising(error: Exception) -> Callable[..., Any]:
    """Return what raises an error."""

    def member(*_: Any) -> Any:
        raise error

    return member


@pytest.mark.wide
@pytest.mark.parametrize(
    ("member", "function", "told"),
    [
        ("open", lambda *_: torch.zeros(2), r"must return an engine with abort, add, .* got a tensor of shape"),
        ("open", raising(RuntimeError("no port is free")), "raised RuntimeError: no port is free"),
        ("broadcast", lambda self, value: str(value), "must return rank 0's float, got '"),
        ("broadcast", raising(ValueError("rank 1 is gone")), "raised ValueError: rank 1 is gone"),
    ],
    ids=["engine", "open", "type", "broadcast"],
)
def test_faults_of_an_executor_are_one_sentence(member: str, function: Any, told: str) -> None:
    """An executor that raises, or returns another kind of thing, is named with its member; the pipeline is free afterwards."""
    faulty = type("Faulty", (Asked,), {member: function})()
    pipe = harness.pipeline(TARGET, DRAFT, draft_length=3, executor=faulty)
    for _ in range(2):
        with pytest.raises(ContractError, match=rf"executor Faulty.*: {member}\(\) {told}"):
            harness.decode(pipe, harness.requests(PROMPTS, 6))


class Ranked(Asked):
    """An executor with ranks, whose others do as this one."""

    offers = frozenset({"ranks"})
    rank = 0

    @contextlib.contextmanager
    def barrier(self) -> Iterator[Callable[[], None]]:
        yield lambda: None

    def end(self, status: int, told: str) -> int:
        return status


def test_ranks_keep_nothing_of_prompts_between_runs() -> None:
    """No rank sees what was written to another's part of the weights, and all have to begin a prompt at the same token."""
    pipe = harness.pipeline(TARGET, DRAFT, draft_length=3, batch_size=4, kv="paged,block=1,share=on", executor=Ranked())
    for _ in range(2):
        harness.check(pipe, harness.requests(PROMPTS[:1], 6))
        assert pipe.report.prefix_hit_tokens == 0


class Loading(Asked):
    """An executor that takes part in loading."""

    offers = frozenset({"loading"})

    def __init__(self, fault: str = "") -> None:
        self._fault, self.loaded = fault, {}

    def device(self, recipe: Recipe) -> torch.device:
        self.loaded["device"] = recipe.device
        return torch.device("cpu")

    def load(self, role: str, config: Any, read: Callable[..., Any]) -> Any:
        if self._fault:
            raise ModelError(f"the {role} {config.model_type}: {self._fault}")
        model = read(attn_implementation="eager") if role == "target" else read()
        self.loaded[role] = config.model_type, model.config._attn_implementation
        return model


@pytest.mark.wide
def test_an_executor_takes_part_in_loading(tmp_path: Path) -> None:
    """It names the device, receives each model's role and configuration, and its options go to ``from_pretrained``."""
    zoo.save_pair(tmp_path)
    models = {"target": str(tmp_path / "target"), "drafter": str(tmp_path / "drafter")}
    executor = Loading()
    pipe = Pipeline(**models, executor=executor, device="cuda:7")
    assert executor.loaded == {"device": "cuda:7", "target": ("qwen3", "eager"), "draft": ("qwen3", "sdpa")}
    asked = harness.requests([[5, 6, 7], [8]], 6)
    harness.assert_exact(zoo.build("qwen3"), asked, harness.decode(pipe, asked))


@pytest.mark.wide
def test_an_executor_refuses_a_model_before_its_weights_are_read(tmp_path: Path) -> None:
    """A model that the executor refuses ends in its sentence, though its weights are not there."""
    zoo.save_pair(tmp_path)
    (tmp_path / "target" / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"^the target qwen3: three heads$"):
        Pipeline(target=str(tmp_path / "target"), drafter=None, executor=Loading("three heads"))


class Mapping(Asked):
    """Maps lists to lists, and notes what it is given."""

    offers = frozenset({"datasets"})

    def map(self, recipe: Any, dataset: Any, max_new_tokens: int, sampling: Any, chat: bool) -> Any:
        self.given = recipe, max_new_tokens, sampling, chat
        return [row | {"text": ""} for row in dataset]


@pytest.mark.wide
def test_an_executor_maps_data_sets() -> None:
    """``Pipeline.map`` hands the data set and the run's options over, and no model is loaded for it."""
    executor = Mapping()
    pipe = Pipeline("tiny", executor=executor, seed=4)
    pipe.batch_size = 2
    assert pipe.map([{"prompt": "a"}], 3, sampling=Sampling(top_k=2), chat=True) == [{"prompt": "a", "text": ""}]
    recipe, *more = executor.given
    assert (recipe.target, recipe.batch_size, recipe.seed, more) == ("tiny", 2, 4, [3, Sampling(top_k=2), True])
    assert not {"parts", "requests"} & vars(pipe).keys()
    with pytest.raises(OptionError, match="max_new_tokens: expected"):
        pipe.map([], 0)
    with pytest.raises(UnknownNameError, match="unknown model 'nothing'"):
        Pipeline("nothing", executor=executor)
    with pytest.raises(ModelError, match="is not there"):
        Pipeline("./nowhere", executor=executor)
    found, alone = (harness.pipeline(TARGET, DRAFT, executor=one).generate(PROMPTS, 4) for one in (executor, "local"))
    assert [result.token_ids for result in found] == [result.token_ids for result in alone]


@pytest.mark.wide
def test_an_executor_that_maps_nothing_is_refused() -> None:
    """Another executor cannot be asked for it: one sentence names one that can."""
    with pytest.raises(
        OptionError, match="map: expected an executor that maps data sets, such as ray of specframe-ray, got 'local'"
    ):
        harness.pipeline(TARGET, DRAFT).map([{"prompt": "a"}])
