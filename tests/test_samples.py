"""Several continuations of one prompt, which is read once: they are those of requests decoded alone."""

from __future__ import annotations

import functools
import random

import attrs
import pytest
import torch
from products import crossed
from specframe_testing import fakes, harness, zoo
from turns import ByTurns

from specframe import Sampling

TARGET = fakes.fake_target(context=128)
DRAFT = fakes.fake_draft(TARGET)
WARM = Sampling(temperature=40.0, samples=5)
"""So warm that the fakes' certainty leaves room for chance: their logits are whole numbers, and nothing is rounded."""
PROMPTS = harness.random_prompts([6, 1, 11], 61, seed=9)
PROMPTS[0][2] = PROMPTS[2][-1] = TARGET.config.eos_token_id
NEW = 14

STORAGE = [
    ("ragged", "slab"),
    *[(align, kv) for align in ("eqspec", "exspec") for kv in ("dynamic", "slab")],
    ("masking,positions=content", "dynamic"),
    ("padding,mask=content,positions=content,bonus=target", "dynamic"),
]
SHARED = [("ragged", "pool"), ("ragged", "paged,block=2"), ("ragged", "paged,block=2,share=on")]
SCHEDULES = ["fixed", "continuous", "same-length,window=3,patience=2", "same-length,window=16"]


def pipeline(target=TARGET, draft=DRAFT, **options):
    """Return a pipeline of three rows and four draft tokens."""
    return harness.pipeline(target, draft, **{"batch_size": 3, "draft_length": 4, "seed": 2, **options})


def asked(sampling=WARM, prompts=PROMPTS, new=NEW):
    """Return the requests for all samples of all prompts."""
    return pipeline().requests.make(prompts, new, sampling=sampling)[0]


@functools.cache
def each_alone(rule):
    """Return what each sample gives when it is decoded by itself."""
    return alone(asked(), rule)


def alone(requests, rule, **options):
    """Return what each request gives when it is decoded by itself."""
    pipe = pipeline(batch_size=1, accept=rule, schedule="fixed", align="ragged", **options)
    return [next(pipe.decode([request])).token_ids for request in requests]


def ids(pipe, requests):
    """Return the tokens of requests decoded together."""
    return [result.token_ids for result in harness.decode(pipe, requests)]


@pytest.mark.wide(but=["block-storage21-continuous"])
@pytest.mark.parametrize(("storage", "schedule"), crossed(STORAGE, SCHEDULES))
@pytest.mark.parametrize(
    "rule", ["block", *(pytest.param(rule, marks=pytest.mark.slow) for rule in ("gumbel", "rejection"))]
)
def test_samples_are_those_of_requests_decoded_alone(rule, storage, schedule):
    """Starting from another's row changes no token, whatever stores the row, moves it and accepts its drafts."""
    pipe = pipeline(accept=rule, align=storage[0], kv=storage[1], schedule=schedule)
    assert ids(pipe, asked()) == each_alone(rule)


def equal(sampling=WARM, prompts=PROMPTS, count=5):
    """Return requests for several prompts, each of them several times, with lengths and stops of their own."""
    rows = [prompt for prompt in prompts for _ in range(count)]
    made = pipeline().requests.make(rows, NEW, sampling=attrs.evolve(sampling, samples=1))[0]
    stops = frozenset(range(0, 61, 7))
    return [
        attrs.evolve(
            one, max_new_tokens=NEW - one.index % 3, stop_token_ids=stops if one.index % 4 == 2 else frozenset()
        )
        for one in made
    ]


@pytest.mark.wide
@pytest.mark.parametrize(("storage", "schedule"), [*zip([*STORAGE, *SHARED], 3 * SCHEDULES, strict=False)])
def test_equal_prompts_are_read_once(storage, schedule):
    """Rows of one call that have the same prompt have it read once, and each has the tokens that it has alone."""
    feeds, expected = harness.Feeds(), alone(equal(), "block")
    options = {"align": storage[0], "kv": storage[1], "schedule": schedule, "accept": "block"}
    assert ids(pipeline(batch_size=15, observers=[feeds], **options), equal()) == expected
    assert sum(rows for round in feeds.reading for rows, _ in round.target) == len(PROMPTS)
    assert ids(pipeline(check=True, **options), equal()) == expected, "with three rows"


def test_rows_that_become_free_start_from_one_that_has_started_so():
    """Where the row that has read a prompt has ended, others start from one that started from it."""
    feeds = harness.Feeds()
    for requests in (asked(attrs.evolve(WARM, samples=6), PROMPTS[:1]), equal(prompts=PROMPTS[:1], count=6)):
        requests = [
            attrs.evolve(one, max_new_tokens=3 + 2 * place, stop_token_ids=frozenset())
            for place, one in enumerate(requests)
        ]
        pipe = pipeline(accept="block", schedule="continuous", observers=[feeds], check=True)
        assert ids(pipe, requests) == alone(requests, "block")
        assert sum(round.report.prefill for round in feeds.rounds) == 1
        feeds.rounds.clear()


@pytest.mark.wide
def test_an_error_of_who_reads_for_others_is_its_own():
    """Where no token can be chosen for the row that reads, the others start from what it has read, and are as they are alone."""

    def nothing(ids_BL, scores_BV):
        return torch.full_like(scores_BV, float("-inf"))

    feeds = harness.Feeds()
    pipe = pipeline(accept="block", batch_size=4, observers=[feeds])
    samplings = [Sampling(processors=[nothing]), *3 * [attrs.evolve(WARM, samples=1)]]
    found = list(pipe.generate(4 * PROMPTS[2:], NEW, sampling=samplings))
    assert [one.finish_reason == "error" for one in found] == [True, False, False, False]
    requests = pipe.requests.make(4 * PROMPTS[2:], NEW, sampling=samplings)[0][1:]
    assert [one.token_ids for one in found[1:]] == alone(requests, "block")
    assert sum(round.report.prefill for round in feeds.rounds) == 1


@pytest.mark.parametrize("what", ["arrival", "speculate", "memory"])
def test_prompts_of_which_each_is_read(what):
    """What arrives at another time, drafts otherwise, or was planned in a bound of memory, reads its prompt by itself."""
    feeds, requests = harness.Feeds(), equal(prompts=PROMPTS[:1], count=2)
    if what != "memory":
        requests[1] = attrs.evolve(requests[1], **{what: {"arrival": 1e-9, "speculate": False}[what]})
    pipe = pipeline(observers=[feeds], accept="block", memory="1GB" if what == "memory" else None)
    assert ids(pipe, requests) == alone(requests, "block")
    assert sum(rows for round in feeds.reading for rows, _ in round.target) == 2


def test_samples_do_not_read_their_prompt_each_by_itself():
    """A policy that may not draft leaves a run's first prompt unread, but for samples, which copy what was read."""
    for samples, reads in ((6, [(1, 29)]), (1, [])):
        feeds = harness.Feeds()
        pipe = pipeline(batch_size=6, schedule="fixed", observers=[feeds], draft_length=ByTurns(0, 0, 0, 4))
        (prompt,) = harness.random_prompts([30], 61)
        list(pipe.generate([prompt], 12, sampling=attrs.evolve(WARM, samples=samples)))
        assert [one for round in feeds.reading for one in round.draft] == reads
        widest = max(tokens for round in feeds.decoding for _, tokens in round.draft)
        assert (widest > 20) == (samples == 1)


@pytest.mark.wide(but=["4"])
@pytest.mark.parametrize("seed", range(8))
def test_any_workload(seed):
    """Prompts, samples, lengths, stops, rows and windows at random: every request gets what it gets alone."""
    choose = random.Random(seed)
    prompts = harness.random_prompts([choose.randint(1, 9) for _ in range(3)], 61, seed)
    prompts.append(prompts[0])
    samplings = [attrs.evolve(WARM, samples=choose.randint(1, 7)) for _ in prompts]
    requests = [
        attrs.evolve(
            one,
            max_new_tokens=choose.choice([1, 1, 2, 5, 12]),
            stop_token_ids=frozenset(choose.sample(range(61), choose.choice([0, 4, 20]))),
            arrival=choose.choice([0.0, 0.0, 0.001]),
        )
        for one in asked(samplings, prompts)
    ]
    align, kv = choose.choice(STORAGE)
    window = choose.randint(2, 9)
    schedule = choose.choice(["fixed", "continuous", f"same-length,window={window},patience={choose.randint(1, 4)}"])
    pipe = pipeline(
        accept="block", align=align, kv=kv, schedule=schedule, batch_size=choose.randint(1, 5), check=seed % 2 == 0
    )
    assert ids(pipe, requests) == alone(requests, "block")


@pytest.mark.wide
@pytest.mark.parametrize("rule", ["gumbel", "block"])
@pytest.mark.parametrize("name", ["qwen3", "mistral", "gemma3"])
def test_samples_of_real_architectures(name, rule):
    """Small random models, with sliding windows among them, give each sample what it gets alone."""
    target = zoo.build(name)
    pair = {"target": target, "draft": zoo.good_draft(target)}
    requests = asked(Sampling(temperature=1.5, samples=4), harness.random_prompts([9, 3], zoo.VOCABULARY), 9)
    expected = alone(requests, rule, **pair)
    for align, schedule in (("ragged", None), ("exspec", "same-length,window=4")):
        assert ids(pipeline(**pair, accept=rule, align=align, schedule=schedule), requests) == expected
