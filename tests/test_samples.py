"""Several continuations of one prompt, which is read once: they are those of requests decoded alone."""

from __future__ import annotations

import functools
import random

import attrs
import pytest
import torch
from products import crossed
from specframe_testing import fakes, harness, zoo

from specframe import Sampling
from specframe.contracts.drafts import Budget, Draft, Transfer, Verdict
from specframe.contracts.requests import Request
from specframe.engine.pool import Pool

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


@pytest.mark.wide
def test_samples_differ_and_keep_their_order():
    """The samples of a prompt come one after the other, the first being what is given without others."""
    results = list(pipeline().generate(PROMPTS, NEW, sampling=WARM))
    assert [(one.index, one.sample) for one in results] == [(index, n) for index in range(3) for n in range(5)]
    assert len({tuple(one.token_ids) for one in results}) == 15
    single = pipeline().generate(PROMPTS, NEW, sampling=attrs.evolve(WARM, samples=1))
    assert [one.token_ids for one in single] == [one.token_ids for one in results if one.sample == 0]


@pytest.mark.wide(but=["block-storage21-continuous"])
@pytest.mark.parametrize(("storage", "schedule"), crossed(STORAGE, SCHEDULES))
@pytest.mark.parametrize(
    "rule", ["block", *(pytest.param(rule, marks=pytest.mark.slow) for rule in ("gumbel", "rejection"))]
)
def test_samples_are_those_of_requests_decoded_alone(rule, storage, schedule):
    """Starting from another's row changes no token, whatever stores the row, moves it and judges its drafts."""
    pipe = pipeline(accept=rule, align=storage[0], kv=storage[1], schedule=schedule)
    assert ids(pipe, asked()) == each_alone(rule)


@pytest.mark.wide
@pytest.mark.parametrize("schedule", SCHEDULES[1:3])
@pytest.mark.parametrize("align", ["ragged", "eqspec", "exspec", "masking,positions=content", "rollback"])
def test_every_invariant_holds(align, schedule):
    """The checks find every query to see its own row's tokens and those of the prompt it shares, and nothing else."""
    pipe = pipeline(accept="gumbel", align=align, schedule=schedule, check=True)
    assert ids(pipe, asked()) == each_alone("gumbel")


@pytest.mark.wide
@pytest.mark.parametrize(("batch_size", "reads", "starts"), [(8, 1, [5]), (6, 1, [5]), (1, 6, []), (4, 2, [3, 1])])
def test_a_prompt_is_read_once_for_those_decoded_together(batch_size, reads, starts):
    """The target reads a prompt once, and its last token once for all that start from it in a round."""
    feeds = harness.Feeds()
    pipe = pipeline(batch_size=batch_size, schedule="fixed", observers=[feeds])
    (prompt,) = harness.random_prompts([30], 61)
    list(pipe.generate([prompt], 3, sampling=attrs.evolve(WARM, samples=6)))
    assert [round.target for round in feeds.rounds if round.report.prefill] == [[(1, 30)]] * reads
    assert [round.draft for round in feeds.rounds if round.report.prefill] == [[(1, 29)]] * reads
    started = [round for round in feeds.decoding if (round.report.lengths == 30).all()]
    assert [(round.target, round.draft) for round in started] == [([(rows, 1)], []) for rows in starts]


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


@pytest.mark.wide(but=["storage1-continuous"])
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
    for requests in (asked(attrs.evolve(WARM, samples=9), PROMPTS[:1]), equal(prompts=PROMPTS[:1], count=9)):
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


class Pauses:
    """Policy that drafts in every fourth round."""

    needs = offers = frozenset()
    maximum = Budget(4)

    def __init__(self):
        self.rounds = 0

    def start(self, run):
        """Nothing to prepare."""

    def budget(self, batch):
        """Return the budget of the next round."""
        self.rounds += 1
        return Budget(4 if self.rounds % 4 == 0 else 0)

    def observe(self, report):
        """Nothing to learn."""


def test_samples_do_not_read_their_prompt_each_by_itself():
    """A policy that may not draft leaves a run's first prompt unread, but for samples, which copy what was read."""
    for samples, reads in ((6, [(1, 29)]), (1, [])):
        feeds = harness.Feeds()
        pipe = pipeline(batch_size=6, schedule="fixed", observers=[feeds], draft_length=Pauses())
        (prompt,) = harness.random_prompts([30], 61)
        list(pipe.generate([prompt], 12, sampling=attrs.evolve(WARM, samples=samples)))
        assert [one for round in feeds.reading for one in round.draft] == reads
        widest = max(tokens for round in feeds.decoding for _, tokens in round.draft)
        assert (widest > 20) == (samples == 1)


@pytest.mark.wide
def test_rows_that_become_free_start_from_one_that_decodes():
    """Under a scheduler that refills rows, samples that wait for one start from a sample that is still decoded."""
    feeds = harness.Feeds()
    requests = asked(attrs.evolve(WARM, samples=9), PROMPTS[:1])
    requests = [
        attrs.evolve(one, max_new_tokens=3 + (one.sample == 0) * 100, stop_token_ids=frozenset()) for one in requests
    ]
    pipe = pipeline(accept="block", align="eqspec", schedule="continuous", observers=[feeds], check=True)
    assert ids(pipe, requests) == alone(requests, "block")
    assert sum(round.report.prefill for round in feeds.rounds) == 1


@functools.cache
def ending_at_once(how):
    """Return requests in which the first samples end with their first token, and what they give alone."""
    requests = asked()
    for place, tokens in enumerate(each_alone("block")):
        if requests[place].sample == 0:
            change = {"max_new_tokens": 1} if how == "length" else {"stop_token_ids": frozenset(tokens[:1])}
            requests[place] = attrs.evolve(requests[place], **change)
    return requests, [
        tokens[: 1 if one.sample == 0 else None] for one, tokens in zip(requests, each_alone("block"), strict=True)
    ]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("align", "schedule", "how"), crossed(["ragged", "eqspec", "exspec"], SCHEDULES, ["length", "eos"])
)
def test_a_parent_may_end_at_once(align, schedule, how):
    """Where the first sample ends with the round that reads the prompt, the others start from what it read."""
    requests, expected = ending_at_once(how)
    feeds = harness.Feeds()
    pipe = pipeline(accept="block", align=align, schedule=schedule, observers=[feeds])
    assert ids(pipe, requests) == expected
    assert feeds.rounds[0].report.finished[0].request.sample == 0


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


@pytest.mark.wide
@pytest.mark.parametrize("drafter", [None, "prompt-lookup"])
def test_samples_without_a_draft_model(drafter):
    """Plain decoding and drafters without a cache serve samples as well."""
    pipe = pipeline(draft=drafter, accept="gumbel", align="exspec")
    assert ids(pipe, asked()) == each_alone("gumbel")


FIVE = "same-length,window=5"


@pytest.mark.wide
def test_a_draft_of_nothing_for_some_rounds():
    """Where a policy drafts nothing for some rounds after samples have started, their draft cache catches up."""
    masking = "masking,positions=content"
    for align, schedule in (("ragged", None), ("eqspec", "continuous"), ("exspec", FIVE), (masking, FIVE)):
        pipe = pipeline(accept="gumbel", align=align, schedule=schedule, draft_length=Pauses(), check=True)
        assert ids(pipe, asked()) == each_alone("gumbel")


@pytest.mark.wide
def test_samples_take_no_more_rows_than_there_are():
    """A finished parent keeps its row while forks have yet to copy it; nobody else is given that row."""
    pool = Pool([Request(0, [1, 2], 1), Request(0, [1, 2], 9, sample=1), Request(1, [3], 9)], 2, 16, 64)
    batch = pool.batch(pool.admit(2))
    tokens = Transfer(Draft(batch.tokens_BS[:, :0]), Verdict(batch.lengths_B * 0, torch.tensor([[9]])))
    parent = pool.advance(batch, tokens).finished[0]
    assert pool.admit(2) == []
    assert [one.request.key for one in pool.live] == [(0, 1)]
    assert not parent.gone
    batch = pool.batch(pool.live)
    assert (batch.starts, batch.lengths.tolist(), batch.tokens_BS[0, :2].tolist()) == (True, [2], [1, 2])
    pool.advance(batch, tokens)
    assert parent.gone
    assert [one.request.key for one in pool.admit(2)] == [(1, 0)]
