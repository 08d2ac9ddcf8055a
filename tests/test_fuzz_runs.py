"""Combinations drawn at random, with aborts, late requests and lack of memory, give the target's own tokens."""

from __future__ import annotations

import functools
import random
import warnings
from pathlib import Path
from typing import Any

import attrs
import fuzzing
import pytest
from planting import Acting, opened, raising
from specframe_testing import harness, zoo
from specframe_testing.constraint_fakes import DigitSum, Even
from specframe_testing.heads import checkpoints as heads
from specframe_testing.heads import stepwise

from specframe import Sampling
from specframe.contracts.requests import Request, Result
from specframe.contracts.round import Sequence
from specframe.engine.local_engine import LocalEngine
from specframe.errors import ModelError, OptionError, SpecframeWarning
from specframe.pipeline import Pipeline

pytestmark = pytest.mark.filterwarnings("ignore")

TARGETS = ("llama", "qwen3", "mistral", "gemma3", "gpt2", "phi3")
CHAINS = (
    "model", "none", "prompt-lookup", "suffix", "first,of=suffix|model", "first,of=suffix|model,weigh=off",
    "early-exit,layers=1", "eagle", "medusa", "layer-skip,skip=attn:0", "window,sink=1,recent=3",
)  # fmt: skip
TREES = (
    *(f"model{shape}" for shape in (",branch=3/2/1", ",tree=dynamic,nodes=12,top=2")),
    "suffix,tree=dynamic,nodes=6,factor=3",
    "prompt-lookup,tree=dynamic,nodes=6,ngram=1",
    'first,"of=suffix|model,branch=2/1",match=2,weigh=off',
    "eagle,branch=2/2",
    "medusa,branch=3/2/1",
)
ALIGNMENTS = ("ragged", "eqspec", "exspec", "rollback")
SCHEDULES: tuple[dict[str, Any], ...] = (
    {},
    *({"schedule": name} for name in ("continuous", "continuous,piece=5", "fixed")),
)
HOW: tuple[dict[str, Any], ...] = (
    *({},) * 6, {"graphs": "on"}, {"attention": "masked"}, {"attention": "flex"}, {"bitwise": True}, {"check": True},
    {"draft_length": "goodput"}, {"draft_length": "explicit,maximum=4,least=0.3"},
)  # fmt: skip
"""How a run is executed; most are by the defaults."""


@functools.cache
def target_of(name: str) -> Any:
    """Return a small target."""
    return zoo.build(name)


@functools.cache
def draft_of(name: str) -> Any:
    """Return a draft model that is mostly right."""
    return zoo.good_draft(target_of(name))


@pytest.fixture(scope="module")
def head_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that returns the folder of a head for a target."""

    @functools.cache
    def made(kind: str, name: str) -> Path:
        folder = tmp_path_factory.mktemp("head") / "head"
        if kind == "eagle":
            heads.eagle3(folder, target_of(name), drafted=70, layers=2)
        else:
            stepwise.overfitted(folder, kind, target_of(name), [[1, 2]], tokens=4, steps=1)
        return folder

    return made


def options_of(draw: random.Random, name: str, head_of: Any) -> dict[str, Any]:
    """Return the options of a run: a drafter, chain or tree, with an alignment, a schedule and the way it is executed."""
    drafter = draw.choice([*CHAINS, *CHAINS, *TREES])
    kind, comma, shape = drafter.partition(",")
    if kind in ("eagle", "medusa"):
        drafter = f'{kind},"checkpoint={head_of(kind, name)}"{comma}{shape}'
    return {
        "drafter": drafter,
        "align": draw.choice(ALIGNMENTS),
        "batch_size": draw.choice([1, 2, 3, 5, 8]),
        "draft_length": draw.choice([1, 2, 3, 6]),
        **draw.choice(SCHEDULES),
        **draw.choice(HOW),
    }


def pipeline(name: str, given: dict[str, Any], **options: Any) -> Pipeline:
    """Return a pipeline; a schedule that an alignment does not take is left to it."""
    made = functools.partial(harness.pipeline, target_of(name), draft_of(name))
    try:
        return made(**given, **options)
    except OptionError:
        return made(**{key: value for key, value in given.items() if key != "schedule"}, **options)


def requests(draw: random.Random) -> list[Request]:
    """Return requests of any lengths, limits, stop ids and constraints, some of which are not to be drafted for."""
    lengths = [draw.choice([1, 2, 5, draw.randint(1, 60)]) for _ in range(draw.randint(1, 9))]
    prompts = harness.random_prompts(lengths, zoo.VOCABULARY, draw.randrange(1000))
    stops: list[Any] = [{zoo.EOS, draw.randrange(zoo.VOCABULARY)} if draw.random() < 0.4 else set() for _ in prompts]
    asked = harness.requests(prompts, [draw.choice([1, 2, draw.randint(1, 24)]) for _ in prompts], stops)
    constraints = [None, None, Even(), DigitSum()]
    return [attrs.evolve(one, speculate=draw.random() > 0.15, constraint=draw.choice(constraints)) for one in asked]


def stepped(engine: LocalEngine, draw: random.Random, asked: list[Request]) -> dict[int, Sequence]:
    """Step an engine to its end, with requests that come late and aborts at any moment; return what has ended, by index."""
    coming, ended = [*asked], dict[int, Sequence]()
    for _ in range(draw.randint(1, len(coming))):
        engine.add(coming.pop())
    while coming or not engine.idle:
        try:
            report = engine.step()
        except ModelError:  # memory ran out where there was one row
            report = None
        for sequence in report.finished if report else ():
            assert sequence.request.index not in ended
            ended[sequence.request.index] = sequence
        if coming and (engine.idle or draw.random() < 0.3):
            engine.add(coming.pop())
        if draw.random() < 0.04:
            gone = draw.choice(asked).key
            if (aborted := engine.abort(gone)) is not None:
                assert aborted.request.index not in ended
                ended[aborted.request.index] = aborted
    return ended


def a_stepped_run(draw: random.Random, name: str, given: dict[str, Any]) -> None:
    """Every request ends once, with the reference decoder's tokens, or with those it had when it was aborted."""
    pipe, asked = pipeline(name, given), requests(draw)
    if draw.random() < 0.2:
        use = pipe.composition
        pipe.parts.composition = attrs.evolve(
            use, verifier=Acting(use.verifier, "score", draw.randint(1, 12), raising("memory"))
        )
    engine = opened(pipe, ())
    with warnings.catch_warnings(action="ignore", category=SpecframeWarning):
        ended = stepped(engine, draw, asked)
    engine.close()
    assert ended.keys() == {one.index for one in asked}
    for one in asked:
        tokens, reason = harness.expected(target_of(name), one)
        sequence = ended[one.index]
        if sequence.finish_reason == "abort":
            tokens, reason = tokens[: len(sequence.token_ids)], "abort"
        assert (sequence.token_ids, sequence.finish_reason) == (tokens, reason), one


def a_sampled_run(draw: random.Random, name: str, given: dict[str, Any]) -> None:
    """Shared noise gives the tokens of plain sampling, sample by sample, whatever drafts and decodes them."""
    lengths = [draw.choice([1, 2, draw.randint(1, 40)]) for _ in range(draw.randint(1, 6))]
    prompts = harness.random_prompts(lengths, zoo.VOCABULARY, draw.randrange(1000))
    temperature = draw.choice([0.0, 0.7, 1.3])
    how = Sampling(
        temperature=temperature,
        top_k=draw.choice([None, 5]) if temperature else None,
        repetition_penalty=draw.choice([None, None, 1.3]),
        samples=draw.choice([1, 1, 3]),
    )
    options = {"accept": "gumbel", "seed": 5, "constraint": draw.choice([None, None, DigitSum()])}
    plain = pipeline(name, {"drafter": None, "batch_size": 4}, **options)
    found = [
        [(one.index, one.sample, one.token_ids) for one in pipe.generate(prompts, 10, sampling=how)]
        for pipe in (plain, pipeline(name, given, **options))
    ]
    assert found[0] == found[1]


def a_run_of_workers(draw: random.Random, name: str, given: dict[str, Any]) -> None:
    """Worker processes give the reference decoder's tokens."""
    asked = requests(draw)
    if "model" in given["drafter"]:  # a process of its own is given the model with the recipe
        given = given | {"drafter": draft_of(name)}
    found: list[Result] = harness.decode(pipeline(name, given, executor="workers,count=2"), asked)
    harness.assert_exact(target_of(name), asked, found)


KINDS = (*(a_stepped_run,) * 12, *(a_sampled_run,) * 7, a_run_of_workers)
"""What is tried with a combination, by its share."""


@pytest.mark.wide(but=["2"])
@fuzzing.inputs("run", fast=20)
def test_a_run(number: int, head_of: Any) -> None:
    """Whatever is combined, whenever requests come and go: the tokens are the target's own, and every request ends once."""
    draw = fuzzing.drawn("run", number)
    name = draw.choice(TARGETS)
    given = options_of(draw, name, head_of)
    try:
        draw.choice(KINDS)(draw, name, given)
    except AssertionError as error:
        raise AssertionError(f"{name} {given}: {error}") from error
