"""What is decoded with a constraint is what reference decoding gives with the same constraint as a logits processor."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from command_line import invoke, refusal
from planting import FAULTS, Acting
from products import crossed
from specframe_std.executors.workers import messages
from specframe_std.executors.workers.messages import Unpacking
from specframe_testing import fakes, harness, zoo
from specframe_testing.conformance import ConstraintSuite
from specframe_testing.constraint_fakes import DigitSum, Even
from workers_objects import Failing

from specframe import Pipeline, Sampling
from specframe.contracts.constraints import Drafted
from specframe.contracts.requests import Request, Result
from specframe.engine.engine_clock import HandClock
from specframe.engine.guards.guard_table import guard
from specframe.engine.local_engine import LocalEngine
from specframe.errors import ContractError, OptionError, PromptError, UnknownNameError
from specframe.plugins.registry import add_entry, registry
from specframe.reference import reference_decode
from specframe.text.constrained_logits import NONE_ALLOWED

SIZE, EOS = 61, 0
TARGET = fakes.fake_target(SIZE)
DRAFT = fakes.fake_draft(TARGET)
PROMPTS = harness.random_prompts((3, 1, 12, 7, 7, 20, 2), SIZE, seed=8)
NEW, STOPS = 14, frozenset({EOS, 9})

Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def forbid(scores: torch.Tensor, ids: list[int]) -> torch.Tensor:
    """Return scores in which these ids have none."""
    scores = scores.clone()
    scores[:, ids] = float("-inf")
    return scores


def even(prompt: int) -> Processor:
    """Return what :class:`Even` does, written as a processor."""
    return lambda ids, scores: forbid(scores, [one for one in range(1, scores.shape[1], 2) if one not in STOPS])


def digit_sum(prompt: int) -> Processor:
    """Return what :class:`DigitSum` does, written as a processor of a row with a prompt of ``prompt`` tokens."""

    def call(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        digits = [token % 5 for token in ids[0, prompt:].tolist()]
        last, ends = (digits or [0])[-1], sum(digits) % 3 == 0
        return forbid(
            scores, [one for one in range(scores.shape[1]) if (not ends if one in STOPS else one % 5 == last)]
        )

    return call


CONSTRAINTS: dict[str, tuple[Callable[[], Any], Callable[[int], Processor]]] = {
    "even": (Even, even),
    "digit-sum": (DigitSum, digit_sum),
}


@functools.cache
def expected(name: str, new: int = NEW) -> list[list[int]]:
    """Return the reference decoder's tokens under a constraint."""
    make = CONSTRAINTS[name][1]
    return [reference_decode(TARGET, prompt, new, STOPS, [make(len(prompt))]) for prompt in PROMPTS]


def asked(constraint: Any, new: int = NEW) -> list[Request]:
    """Return a request for each prompt with a constraint."""
    return [Request(index, prompt, new, STOPS, constraint=constraint) for index, prompt in enumerate(PROMPTS)]


def tokens(results: list[Result]) -> list[list[int]]:
    """Return the tokens of results, none of which may have failed."""
    assert [result.error for result in results] == [None] * len(results)
    return [result.token_ids for result in results]


@pytest.mark.wide(but=["test_equals_reference[none]"])
class TestEven(ConstraintSuite):
    def make(self) -> Even:
        return Even()


@pytest.mark.wide(but=["test_equals_reference[none]"])
class TestDigitSum(ConstraintSuite):
    def make(self) -> DigitSum:
        return DigitSum()


DRAFTERS = ("none", "model", "model,tree=static", "model,tree=dynamic", "prompt-lookup", "scripted", "tree")


def drafter_of(name: str) -> Any:
    """Return a drafter: scripted ones propose what the target would say without a constraint."""
    scripts = {"scripted": fakes.ScriptedDrafter, "tree": fakes.ScriptedTree}
    return scripts[name](harness.truth(TARGET, asked(None))) if name in scripts else name


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "drafter", "align"), crossed([*CONSTRAINTS], DRAFTERS, ("ragged", "eqspec", "exspec"))
)
def test_equals_reference(name: str, drafter: str, align: str) -> None:
    """Greedy tokens are the reference decoder's, over chains, trees, drafts that are not allowed, alignments and batch sizes."""
    for batch_size in (1, 3, 8):
        options = {"drafter": drafter_of(drafter), "align": align, "batch_size": batch_size, "draft_length": 3}
        if align == "eqspec" and drafter in ("model,tree=static", "model,tree=dynamic", "tree"):
            options["kv"] = "slab"
        pipe = harness.pipeline(TARGET, DRAFT, **options)
        assert tokens(harness.decode(pipe, asked(CONSTRAINTS[name][0]()))) == expected(name)


@pytest.mark.wide
@pytest.mark.parametrize("drafter", DRAFTERS[:5])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_sampling_equals_plain_decoding(name: str, drafter: str) -> None:
    """With shared noise every drafter, tree and batch size gives the tokens of one row at a time with a processor."""
    make, processor = CONSTRAINTS[name]
    how = {"temperature": 1.3, "repetition_penalty": 1.1}
    soft = zoo_pair()[0]
    prompts = [[token % zoo.VOCABULARY for token in prompt] for prompt in PROMPTS[:4]]

    def ids(pipe: Pipeline, sampling: Any) -> list[list[int]]:
        pipe.requests._stops = STOPS
        return tokens([*pipe.generate(prompts, 9, sampling=sampling)])

    plain = harness.pipeline(soft, None, accept="gumbel", batch_size=1, seed=3)
    own = [Sampling(**how, processors=(processor(len(prompt)),)) for prompt in prompts]
    wanted = ids(plain, own)
    assert wanted != ids(plain, Sampling(**how))
    for batch_size in (1, 3, 8):
        options = {"drafter": drafter, "accept": "gumbel", "batch_size": batch_size, "draft_length": 3, "seed": 3}
        assert ids(harness.pipeline(*zoo_pair(), **options, constraint=make()), Sampling(**how)) == wanted


@functools.cache
def zoo_pair() -> tuple[Any, Any]:
    """Return a real target, whose distributions are no point masses, and a draft."""
    target = zoo.build("llama")
    return target, zoo.good_draft(target)


def test_a_lack_of_memory_inside_of_masks_is_one_of_the_round() -> None:
    """Memory that runs out in a constraint's call halves the batch, and no row ends with an error."""

    class Large(DigitSum):
        calls = 0

        def masks(self, states: Any, drafted: Drafted) -> torch.Tensor:
            self.calls += 1
            if self.calls == 5:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().masks(states, drafted)

    pipe = harness.pipeline(TARGET, DRAFT, batch_size=4, draft_length=3)
    with pytest.warns(RuntimeWarning, match="memory ran out"):
        assert tokens(harness.decode(pipe, asked(Large()))) == expected("digit-sum")


def open_engine(pipe: Pipeline) -> LocalEngine:
    """Return an engine of a pipeline."""
    engine: Any = pipe.executor.open(pipe.recipe, pipe.parts, [], HandClock())
    return engine


@pytest.mark.wide(but=["begin-none-"])
@pytest.mark.parametrize("check", [False, True], ids=["", "check"])
@pytest.mark.parametrize("drafter", ["none", "model", "prompt-lookup", "model,tree=static"])
@pytest.mark.parametrize("member", ["begin", "advance", "nothing"])
def test_an_error_ends_its_own_row(member: str, drafter: str, check: bool) -> None:
    """The row that a call was made for ends with the error and the tokens it has; the others get theirs."""
    pipe = harness.pipeline(TARGET, DRAFT, drafter=drafter, batch_size=4, draft_length=3, check=check)
    results = harness.decode(pipe, asked(Failing(member)))
    failed = results.pop(2)
    assert failed.finish_reason == "error"
    assert [result.token_ids for result in results] == [one for i, one in enumerate(expected("digit-sum")) if i != 2]
    assert failed.token_ids == expected("digit-sum")[2][: len(failed.token_ids)]
    if member == "nothing":
        assert failed.error == f"constraint Failing: {NONE_ALLOWED}"
        assert failed.token_ids
    else:
        assert str(failed.error).startswith(f"constraint Failing: {member}() raised RuntimeError: no grammar, at ")
    assert (len(failed.token_ids) == 0) == (member == "begin")


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore::specframe.errors.SpecframeWarning")
@pytest.mark.parametrize("when", ["first", "middle", "last"])
@pytest.mark.parametrize("member", ["begin", "masks", "advance"])
@pytest.mark.parametrize("act", [*FAULTS, "abort", "close"])
def test_whatever_happens_in_a_call(act: str, member: str, when: str) -> None:
    """Each request has one end: with its tokens, with an error and a part of them, or by the abort; a closed engine has none."""
    pipe, counting = harness.pipeline(TARGET, DRAFT, batch_size=3, draft_length=2), Acting(DigitSum(), member, 0, None)
    harness.decode(pipe, asked(counting))
    count = counting.calls
    engine, gone = open_engine(pipe), list[Any]()

    def happen(inner: Any, usual: Callable[[], Any]) -> Any:
        if act in FAULTS:
            raise FAULTS[act]()
        gone.append(engine.abort((4, 0)) if act == "abort" else engine.close())
        return usual()

    at = {"first": 1, "middle": (count + 1) // 2, "last": count}[when]
    acting = Acting(DigitSum(), member, at, happen)
    for request in asked(acting):
        engine.add(request)
    ended: list[Any] = []
    while not engine.idle:
        report = engine.step()
        ended += report.finished if report else []
    if act == "close":
        assert len(ended) < len(PROMPTS)
        return
    ended += [one for one in gone if one is not None]
    assert sorted(one.request.index for one in ended) == list(range(len(PROMPTS)))
    failed = [one for one in ended if one.finish_reason == "error"]
    assert bool(failed) == (act in ("error", "exit"))
    for one in ended:
        wanted = expected("digit-sum")[one.request.index]
        assert one.token_ids == (wanted if one.finish_reason in ("eos", "length") else wanted[: len(one.token_ids)])
    assert all("planted" in one.error or "SystemExit" in one.error for one in failed)
    assert len(failed) <= (3 if member == "masks" else 1)
    assert len([one for one in ended if one.finish_reason not in ("eos", "length")]) <= 3


WRONG: dict[str, tuple[Any, str]] = {
    "list": ([[1]], r"masks as a tensor, got \[\[1\]\]"),
    "dtype": (torch.zeros(2, 1, 2), r"masks of 32 bits a number, torch.int32, got torch.float32"),
    "rows": (torch.zeros(1, 1, 2, dtype=torch.int32), r"masks of shape .* = \(2, 1, 2\), got \(1, 1, 2\)"),
    "width": (torch.zeros(2, 1, SIZE, dtype=torch.int32), r"masks of shape .* = \(2, 1, 2\), got \(2, 1, 61\)"),
}


@pytest.mark.wide(but=["width"])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_masks_are_refused(name: str) -> None:
    """The sentence names the constraint, what its masks have to be and what was got."""
    given, why = WRONG[name]

    class Wrong(Even):
        def masks(self, states: Any, drafted: Drafted) -> Any:
            return given

    guarded = guard("constraint", Wrong())
    states = [guarded.begin(request, SIZE, None) for request in asked(None)[:2]]
    nothing = np.zeros((2, 0), dtype=np.int64)
    with pytest.raises(ContractError, match=rf"^constraint .*Wrong.*: masks\(\) must return {why}$"):
        guarded.masks(states, Drafted(nothing, nothing, 1))


@pytest.fixture
def known() -> Any:
    """Register the fakes for one test."""
    found = registry()
    for name, factory in (("even", Even), ("digit-sum", DigitSum)):
        add_entry(found, "test-kit", "constraint", name, factory)
    yield found
    del found.entries["constraint"]


@pytest.mark.wide
def test_by_name(known: Any) -> None:
    """A pipeline's constraint holds for requests that name none, options follow the name, and objects do as well."""
    for given in ("digit-sum", "digit-sum,base=5,every=3", DigitSum()):
        pipe = harness.pipeline(TARGET, DRAFT, constraint=given, batch_size=3, draft_length=3)
        assert tokens(harness.decode(pipe, asked(None))) == expected("digit-sum")
    assert tokens(harness.decode(pipe, asked("even"))) == expected("even")
    with pytest.raises(UnknownNameError, match=r"^unknown constraint 'evan': expected .*; did you mean 'even'\?$"):
        harness.pipeline(TARGET, DRAFT, constraint="evan")
    with pytest.raises(OptionError, match=r"^constraint 'even' has no option 'odd': it takes none$"):
        harness.pipeline(TARGET, DRAFT, constraint="even,odd=1")
    with pytest.raises(
        OptionError, match=r"^constraint: expected a name or an object with advance, begin, masks, got 5"
    ):
        harness.pipeline(TARGET, DRAFT, constraint=5)
    engine = open_engine(pipe)
    with pytest.raises(PromptError, match=r"^unknown constraint 'evan'"):
        engine.add(asked("evan")[0])
    with pytest.raises(PromptError, match="without masks"):
        engine.add(asked(type("Half", (), {"begin": len, "advance": len})())[0])
    assert engine.idle


@pytest.mark.wide
def test_on_the_command_line(known: Any) -> None:
    """`specframe run --constraint NAME` decodes with it, and refuses a name that nothing has."""
    options = ["run", "--max-new-tokens", "8", "--output", "-", "--quiet", "import os\n"]
    done = invoke(*options, "--constraint", "even")
    assert done.exit_code == 0, done.output
    pipe = Pipeline(constraint=Even())
    (result,) = pipe.generate(["import os\n"], 8)
    stops = pipe.requests._stops
    assert all(token % 2 == 0 or token in stops for token in result.token_ids)
    assert str(result.token_ids) in done.output or f'"text": "{result.text}"' in done.output
    assert "--constraint: unknown constraint 'evan'" in refusal(*options, "--constraint", "evan")


def test_a_worker_knows_a_constraint_again() -> None:
    """Requests with one object as their constraint share one in a worker, too, so that their masks are asked for together."""
    unpacking = Unpacking(None, torch.device("cpu"))
    shared, other = DigitSum(), DigitSum(base=7)
    came = [unpacking.request(messages.packed(one, None)) for one in (*asked(shared), *asked(other), *asked("even"))]
    found = [one.constraint for one in came]
    count = len(PROMPTS)
    assert [one is found[0] for one in found] == [True] * count + [False] * 2 * count
    assert [one is found[count] for one in found[count:]] == [True] * count + [False] * count
    assert set(found[2 * count :]) == {"even"}
