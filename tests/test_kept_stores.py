"""Stores stay open between the runs of a pipeline, and what they have cached of prompts is not read again."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import planting
import pytest
import torch
import torch.distributed as distributed
from specframe_std.kv.slab import Slab
from specframe_std.verifiers.chain import ChainVerifier
from specframe_testing import fakes, harness, zoo
from specframe_testing.paged_fake import Gathering, Pages
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from specframe.contracts.requests import GREEDY, Request
from specframe.errors import ContractError, OptionError
from specframe.model.open_stores import OpenStore, Stores
from specframe.model.twin import ModelState
from specframe.pipeline import Pipeline
from specframe.reference import reference_decode
from specframe.text.processor_formulas import plan_of

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)
ASKED = harness.requests(harness.random_prompts([5, 9, 1], 61), [9, 4, 7], {7})


class Noted(Slab):
    """Notes the rows, the capacity and the store of each opening."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[tuple[int, int, weakref.ref[Any]]] = []

    def open(self, shapes: Any, rows: int, capacity: int, device: torch.device) -> Any:
        """Return a store."""
        store = super().open(shapes, rows, capacity, device)
        self.opened.append((rows, capacity, weakref.ref(store)))
        return store

    def alive(self) -> int:
        """Return how many stores are there yet."""
        gc.collect()
        return sum(store() is not None for *_, store in self.opened)


def noted(target: Any = TARGET, **options: Any) -> tuple[Pipeline, Noted]:
    """Return a pipeline of two models, and its backend."""
    kv, options = Noted(), {"batch_size": 3, "draft_length": 3, **options}
    return harness.pipeline(target, DRAFT, kv=kv, **options), kv


@pytest.mark.wide
@pytest.mark.parametrize("align", ["ragged", "eqspec", "exspec"])
@pytest.mark.parametrize("graphs", ["off", "on"])
def test_a_second_run_opens_nothing(align: str, graphs: str) -> None:
    """What fits is used again, with fewer rows and shorter sequences, too; what does not fit is let go and opened anew."""
    pipe, kv = noted(align=align, graphs=graphs)
    harness.check(pipe, ASKED)
    assert len(kv.opened) == 2, "the target's and the draft model's"
    harness.check(pipe, ASKED[1:])
    pipe.batch_size = 2
    harness.check(pipe, ASKED)
    assert (len(kv.opened), kv.alive()) == (2, 2)
    longer = harness.requests(harness.random_prompts([20, 3], 61), 20)
    harness.check(pipe, longer)
    assert (len(kv.opened), kv.alive()) == (4, 2), "longer sequences"
    pipe.batch_size = 4
    harness.check(pipe, harness.requests(harness.random_prompts([2] * 4, 61), 3))
    assert len(kv.opened) == 6, "more rows"
    assert kv.alive() == 2


def test_a_draft_model_is_tried_in_its_first_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of transformers that a drafter opens a cache for has one runner from run to run, until one of its modules changes."""
    pipe = harness.pipeline(TARGET, draft := fakes.fake_draft(TARGET), batch_size=3, draft_length=3)
    runners: list[Any] = []
    made = Stores.runner
    monkeypatch.setattr(Stores, "runner", lambda self, model: runners.append(made(self, model)) or runners[-1])
    harness.check(pipe, ASKED)
    harness.check(pipe, harness.requests(harness.random_prompts([20, 3], 61), 20))  # whose stores are opened anew
    draft.register_module("another", torch.nn.Identity())
    harness.check(pipe, ASKED)
    assert [one is runners[0] for one in runners] == [True, True, False]
    assert {one.role for one in runners} == {"draft"}


@pytest.mark.wide(but=["error"])
@pytest.mark.parametrize("fault", ["error", "memory"])
def test_what_a_round_has_failed_in_is_not_used_again(fault: str) -> None:
    """After an error, or a lack of memory, caches are opened anew."""
    pipe, kv = noted()
    planting.plant(pipe, pipe.composition, ("verifier", "", "score"), 3, planting.raising(fault))
    if fault == "error":
        with pytest.raises(ContractError, match="planted"):
            harness.decode(pipe, ASKED)
        assert kv.alive() == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        harness.check(pipe, ASKED)
    assert (len(kv.opened), kv.alive()) == (4, 2)


class NotStarting(ChainVerifier):
    """Cannot be started, until it may."""

    may = False

    def start(self, run: Any) -> None:
        """Start, or fail."""
        if not self.may:
            raise ValueError("planted")
        super().start(run)


def test_what_was_opened_for_a_run_that_cannot_start_is_let_go() -> None:
    """An error of a role that starts, after the draft model's cache was opened: no store is left. The next run opens its own."""
    pipe, kv = noted(verify=(verifier := NotStarting()))
    with pytest.raises(ContractError, match="planted"):
        harness.decode(pipe, ASKED)
    assert (len(kv.opened), kv.alive()) == (2, 0)
    verifier.may = True
    harness.check(pipe, ASKED)
    assert (len(kv.opened), kv.alive()) == (4, 2)


def test_stores_are_taken_once() -> None:
    """What is kept suits a run that needs less, once; rows that keep nothing suit a model whose weights have changed."""
    run = harness.open_run(zoo.build("llama", seed=5), 2, 20)
    model, kv, stores = run.runner, run.kv, Stores()
    opened = OpenStore(model, kv, 2, 20, run.target.store)
    stores.keep([opened])
    assert stores.room(model, kv, 1, 9) == (2, 20)
    assert stores.take(model, kv, 2, 20) is opened
    assert stores.take(model, kv, 2, 20) is None
    stores.keep([opened])
    assert stores.room(model, kv, 3, 9) == (3, 9)
    assert stores.take(model, kv, 2, 20) is None, "nothing is held beside what is opened"
    stores.keep([opened])
    noise(model.module)
    assert stores.room(model, kv, 1, 9) == (2, 20)


COMMON = harness.random_prompts([14], zoo.VOCABULARY, seed=4)[0]


def test_rows_of_a_run_that_ends_for_another_rule_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampled request in the middle of greedy ones changes the rule: the stores are used again, and have the live rows alone."""
    kv, stores = Pages(lasting=True), []
    open_pages = kv.open
    monkeypatch.setattr(kv, "open", lambda *given: stores.append(open_pages(*given)) or stores[-1])
    target = zoo.build("llama")
    how: dict[str, Any] = {"attention": Gathering(), "batch_size": 3, "draft_length": 3, "accept": "auto"}
    pipe = harness.pipeline(target, zoo.good_draft(target), kv=kv, **how)
    engine = planting.opened(pipe, ())
    engine.make_room(30)
    plans = [GREEDY, GREEDY, plan_of((), greedy=False)]
    for index, plan in enumerate(plans):
        engine.add(Request(index, COMMON[index:], 9, plan=plan))
        if not plan.greedy:
            assert [store._rows for store in stores] == [{}, {}]
        engine.step()
    assert len(stores) == 2
    assert [len(store._rows) for store in stores] == [3, 3]
    engine.close()
    assert [store._rows for store in stores] == [{}, {}]


@pytest.mark.wide(but=["plain"])
@pytest.mark.parametrize("draft", [False, True], ids=["plain", "a draft model"])
def test_a_second_run_reads_what_is_not_cached(draft: bool) -> None:
    """Of prompts that begin like those of an earlier run the other tokens alone are fed; tokens are the reference's."""
    target, feeds = zoo.build("llama"), harness.Feeds()
    how: dict[str, Any] = {"attention": Gathering(), "batch_size": 2, "draft_length": 3, "observers": [feeds]}
    model = zoo.good_draft(target) if draft else None
    pipe = harness.pipeline(target, model, kv=Pages(lasting=True), **how)

    def fed(prompts: list[list[int]]) -> tuple[list[tuple[int, int]], int]:
        """Return the forwards of the target that read prompts, and the figure."""
        feeds.rounds.clear()
        harness.check(pipe, harness.requests(prompts, 6))
        return [one for round in feeds.reading for one in round.target], pipe.report.prefix_hit_tokens

    assert fed([[*COMMON, 5, 6], [3]]) == ([(2, 16)], 0)
    assert fed([[*COMMON, 5]]) == ([(1, 15 - 12)], 12)
    assert fed([[*COMMON, 6, 7], [*COMMON[:9], 8]]) == ([(2, 4)], 12 + 8)
    assert fed([[3] * 15]) == ([(1, 15)], 0)
    pipe.close()
    assert fed([[*COMMON, 5]]) == ([(1, 15)], 0)


@pytest.mark.wide
def test_pages_of_earlier_runs_are_given_up_for_others() -> None:
    """A store keeps of earlier prompts what nobody else needs: any number of runs fits."""
    target = zoo.build("llama")
    how: dict[str, Any] = {"attention": Gathering(), "batch_size": 2, "draft_length": 3, "drafter": "prompt-lookup"}
    pipe = harness.pipeline(target, None, kv=Pages(pages=14, lasting=True), **how)
    for seed in range(4):
        harness.check(pipe, harness.requests(harness.random_prompts([9, 12, 5], zoo.VOCABULARY, seed=seed), 8))


def noise(model: Any) -> None:
    """Write to all weights as an optimiser does, so that torch counts no write."""
    for one in model.parameters():
        one.data.add_(0.05 * torch.randn(one.shape, generator=torch.Generator().manual_seed(1)))


def copy(model: Any) -> None:
    """Copy the weights of another model."""
    for one, other in zip(model.parameters(), zoo.build("llama", seed=8).parameters(), strict=True):
        one.data.copy_(other)


def one_row(model: Any) -> None:
    """Write to what is embedded for one token."""
    model.get_input_embeddings().weight.data[COMMON[2]] += 1.0


def two_rows(model: Any) -> None:
    """Have two tokens change places: the sum of all numbers stays what it was."""
    rows = model.get_input_embeddings().weight.data
    rows[[COMMON[1], COMMON[2]]] = rows[[COMMON[2], COMMON[1]]]


def buffer(model: Any) -> None:
    """Write to a number that is no parameter."""
    model.model.rotary_emb.inv_freq.data.mul_(0.5)


def setting(model: Any) -> None:
    """Have a module compute otherwise, as an adapter that is switched does."""
    model.model.layers[0].self_attn.scaling *= 3


WRITES: list[Callable[[Any], None]] = [noise, copy, one_row, two_rows, buffer, setting]


@pytest.mark.wide(but=["two_rows", "buffer"])
@pytest.mark.parametrize("write", WRITES, ids=lambda one: one.__name__)
def test_what_was_cached_with_other_weights_is_read_again(write: Callable[[Any], None]) -> None:
    """After any write between two runs tokens are those of the weights as they are; without one nothing is read again."""
    assert COMMON[1] != COMMON[2]
    target = zoo.build("llama")
    prompts = [[*COMMON, 5, 6], [*COMMON, 7]]
    pipe = harness.pipeline(target, kv="paged,block=4,share=on", batch_size=2, draft_length=3, drafter="prompt-lookup")
    before = [list(one.token_ids) for one in pipe.generate(prompts, 8)]
    assert [one.token_ids for one in pipe.generate(prompts, 8)] == before
    assert pipe.report.prefix_hit_tokens == 2 * 12
    write(target)
    found = [one.token_ids for one in pipe.generate(prompts, 8)]
    assert found == [reference_decode(target, prompt, 8, {zoo.EOS}) for prompt in prompts]
    assert pipe.report.prefix_hit_tokens == 12, "the second waits for the first"
    assert found == [one.token_ids for one in pipe.generate(prompts, 8)]
    assert pipe.report.prefix_hit_tokens == 2 * 12


def test_whoever_knows_of_a_change_says_so() -> None:
    """What is no weight and no setting is not looked at: its change has prompts read again where the user reports it."""
    target, factor = zoo.build("llama"), [1.0]
    target.model.layers[0].mlp.register_forward_hook(lambda module, given, found: found * factor[0])
    pipe = harness.pipeline(target, kv="paged,block=4,share=on", draft_length=3, drafter="prompt-lookup")
    running = pipe.as_completed([COMMON, COMMON], 8)
    next(running)
    with pytest.raises(OptionError, match="weights_changed: expected a pipeline that is idle, got one that is still"):
        pipe.weights_changed()
    running.close()
    factor[0] = -3.0
    pipe.weights_changed()
    assert [one.token_ids for one in pipe.generate([COMMON], 8)] == [reference_decode(target, COMMON, 8, {zoo.EOS})]
    assert pipe.report.prefix_hit_tokens == 0


def test_a_setting_is_part_of_a_models_state() -> None:
    """A model whose module computes with another number is another one, though no weight was written to: workers get it again."""
    model = zoo.build("llama")
    before = ModelState.of(model)
    assert before.equals(ModelState.of(model))
    setting(model)
    assert not before.equals(ModelState.of(model))


def test_the_state_of_a_model_whose_weights_ranks_share() -> None:
    """Of a weight that is split over ranks the state has this rank's part: a write to it is seen."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model, mesh = torch.nn.Linear(4, 4), init_device_mesh("cpu", (1,))
        model.weight = torch.nn.Parameter(distribute_tensor(model.weight.data, mesh, [Shard(0)]))
        before = ModelState.of(model)
        assert before.equals(ModelState.of(model))
        model.weight.data.mul_(2)
        assert not before.equals(ModelState.of(model))
    finally:
        distributed.destroy_process_group()
