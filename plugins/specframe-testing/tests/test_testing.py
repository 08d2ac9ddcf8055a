"""The test kit itself: its fakes show every fault of a cache, and its suites catch strategies that are wrong."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch
from specframe_testing import conformance, fakes, harness
from transformers import DynamicCache

from specframe.contracts.drafts import Acceptance, Budget, Scores
from specframe.contracts.round import Kept
from specframe.plugins.compose import strategy
from specframe.plugins.registry import registry
from specframe.reference import reference_decode
from specframe.row_map import RowMap

pytest_plugins = ["pytester"]

TARGET = fakes.fake_target()


def made(kind, name):
    """Return the class of a registered strategy."""
    return type(strategy(registry(), kind, name))


Ragged, EqSpec = made("alignment", "ragged"), made("alignment", "eqspec")
Greedy, Chain = made("acceptance rule", "greedy"), made("verifier", "chain")
ModelDrafter, Slab = made("drafter", "model"), made("KV backend", "slab")
Continuous, Fixed = made("scheduler", "continuous"), made("draft-length policy", "fixed")


def logits(tokens, positions=None, mask=None, cache=None):
    """Return a fake's logits after the last token."""
    ids = torch.tensor([tokens])
    positions = torch.tensor([positions or list(range(len(tokens)))])
    return TARGET(ids, attention_mask=mask, position_ids=positions, past_key_values=cache).logits[0, -1]


PLAIN = [5, 6, 7, 8, 9]


def visible(*hidden):
    """Return a mask for one query that hides some of five keys."""
    mask = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
    mask[..., list(hidden)] = False
    return mask


@pytest.mark.wide
@pytest.mark.parametrize("place", range(5))
def test_fake_sees_every_token_and_position(place):
    """Another token, another position, or a token that is not seen, anywhere in the sequence, changes the logits."""
    other, moved = list(PLAIN), list(range(5))
    other[place] += 1
    moved[place] += 1
    for changed in (logits(other), logits(PLAIN, moved), logits(PLAIN, mask=visible(place))):
        assert not torch.equal(changed, logits(PLAIN))


@pytest.mark.wide
def test_fake_reads_through_its_cache():
    """Fed in parts the logits are the same; a stale, missing or doubled entry of the cache changes them."""
    cache = DynamicCache(config=TARGET.config)
    logits(PLAIN[:4], cache=cache)
    assert torch.equal(logits(PLAIN[4:], [4], cache=cache), logits(PLAIN))
    for spoil in (
        lambda layer: layer.keys[:, :, 1].copy_(layer.keys[:, :, 2]),
        lambda layer: layer.values[:, :, 1].zero_(),
        lambda layer: layer.values.copy_(layer.values.flip(2)),
    ):
        cache = DynamicCache(config=TARGET.config)
        logits(PLAIN[:4], cache=cache)
        spoil(cache.layers[0])
        assert not torch.equal(logits(PLAIN[4:], [4], cache=cache), logits(PLAIN))


@pytest.mark.wide
def test_known_tokens_of_the_reference_go_on():
    """More tokens are those after the known ones; fewer are the first of them; the context's end is the end."""
    target = fakes.fake_target(context=20)
    own = reference_decode(target, [5, 6], 18)
    for count in (3, 0, 8, 5, 18, 40):
        assert harness.continuation(target, [5, 6], count) == own[:count]
    assert [*harness.Continuation(target, [5, 6], None)] == own


def test_an_error_is_no_end_of_the_references_tokens(monkeypatch):
    """After an error the same tokens are asked for again, from the first on."""
    target, own = fakes.fake_target(), reference_decode(TARGET, [5, 6], 8)
    assert harness.continuation(target, [5, 6], 3) == own[:3]
    with monkeypatch.context() as patched:
        patched.setattr(type(target), "forward", failing)
        with pytest.raises(torch.OutOfMemoryError):
            harness.continuation(target, [5, 6], 8)
    assert harness.continuation(target, [5, 6], 8) == own


def failing(*arguments, **options):
    """Run out of memory."""
    raise torch.OutOfMemoryError("planted")


class Shifted(Ragged):
    """Positions that are one too high once something was rejected."""

    def layout(self, store, rows, capacity):
        layout = super().layout(store, rows, capacity)
        place = layout.place

        def wrong(batch, width, offset):
            placed = place(batch, width, offset)
            return placed if batch.prefill else attrs.evolve(placed, positions_BT=placed.positions_BT + 1)

        layout.place = wrong
        return layout


class Forgetful(EqSpec):
    """An alignment that keeps one rejected token when there is any."""

    def layout(self, store, rows, capacity):
        layout = super().layout(store, rows, capacity)
        commit = layout.commit
        layout.commit = lambda batch, kept: commit(batch, Kept(kept.on_host() + 1) if kept.on_host else kept)
        return layout


class Alike(Greedy):
    """A rule that gives every row what the worst row gets, and one token too few."""

    def accept(self, batch, draft, scores):
        acceptance = super().accept(batch, draft, scores)
        return Acceptance(acceptance.accepted_B.amin().expand_as(acceptance.accepted_B), acceptance.tokens_BT)


class Generous(Greedy):
    """A rule that accepts the first rejected token."""

    def accept(self, batch, draft, scores):
        acceptance = super().accept(batch, draft, scores)
        tokens_BT = torch.cat([draft.tokens_BN, acceptance.tokens_BT[:, -1:]], dim=1)
        return Acceptance((acceptance.accepted_B + 1).clamp(max=draft.nodes), tokens_BT)


class Late(Chain):
    """A verifier whose scores are off by one place."""

    def score(self, batch, draft):
        return Scores(super().score(batch, draft).logits_BTV.roll(1, dims=1))


class Rereading(ModelDrafter):
    """A drafter that reads every prefix again."""

    def propose(self, batch, budget):
        if not batch.prefill:
            self._row_map, self._cached = RowMap(len(self._cached)), self._cached * 0
        return super().propose(batch, budget)


class Wary(ModelDrafter):
    """A drafter that ends its chains before a token it has drawn and finds unlikely."""

    def propose(self, batch, budget):
        draft = super().propose(batch, budget)
        if draft.logits_BNV is None:
            return draft
        drawn_BK = draft.logits_BNV.softmax(-1).gather(2, draft.tokens_BN[..., None])[..., 0]
        return attrs.evolve(draft, counts=(drawn_BK > 0.3).cumprod(1).sum(1).numpy())


class Hasty(Continuous):
    """A scheduler that takes in everything it can before it decodes."""

    def next_batch(self, pool):
        sequences = pool.admit(self._batch_size - len(pool.live)) or pool.live
        return pool.batch(sequences) if sequences else None


class Favouring(Continuous):
    """A scheduler that decodes one row to its end before the next has a turn."""

    def next_batch(self, pool):
        sequences = pool.admit(self._batch_size - len(pool.live)) or pool.live[:1]
        return pool.batch(sequences) if sequences else None


class Boundless(Fixed):
    """A policy that goes beyond its maximum."""

    def start(self, run):
        """Nothing to prepare."""

    def budget(self, batch):
        return Budget(self.maximum.depth + 1)


class KeysOnly(Slab):
    """A store that moves keys and leaves values where they are."""

    def open(self, shapes, rows, capacity, device):
        store = super().open(shapes, rows, capacity, device)
        move, moved = store.move, store._moved

        def wrong(sources_BT, targets_BT=None):
            store._moved = moved[:1]
            move(sources_BT, targets_BT)
            store._moved = moved

        store.move = wrong
        return store


class Unarranged(Slab):
    """A store that does not follow the batch."""

    def open(self, shapes, rows, capacity, device):
        store = super().open(shapes, rows, capacity, device)
        store.arrange = lambda sequences: None
        return store


class Orphaned(Slab):
    """A store in which samples begin without the row of their parent."""

    def open(self, shapes, rows, capacity, device):
        store = super().open(shapes, rows, capacity, device)
        arrange = store._row_map.arrange

        def wrong(sequences):
            moves = arrange(sequences)
            own = [pair for pair in zip(moves.destinations, moves.sources, strict=True) if pair[0] not in moves.forked]
            return attrs.evolve(moves, destinations=[to for to, _ in own], sources=[source for _, source in own])

        store._row_map.arrange = wrong
        return store


class SiblingSeen(Chain):
    """A verifier that feeds a tree as the chain of its nodes: each sees those before it."""

    def score(self, batch, draft):
        return super().score(batch, attrs.evolve(draft, parents_BN=None))


class PathLeftInColumns(EqSpec):
    """An alignment that drops what was rejected as if the draft were a chain."""

    def layout(self, store, rows, capacity):
        layout = super().layout(store, rows, capacity)
        commit = layout.commit
        layout.commit = lambda batch, kept: commit(batch, attrs.evolve(kept, path_BT=None))
        return layout


class OneByOne(Slab):
    """A store that moves slots one after the other, so that a later one may be overwritten before it is read."""

    def open(self, shapes, rows, capacity, device):
        store = super().open(shapes, rows, capacity, device)
        move = store.move

        def singly(sources_BT, targets_BT=None):
            for column in range(sources_BT.shape[1]):
                here = slice(column, column + 1)
                move(sources_BT[:, here], None if targets_BT is None else targets_BT[:, here])

        store.move = singly
        return store


class AnyParent(Greedy):
    """A rule that accepts as if every node followed every other."""

    def accept(self, batch, draft, scores):
        if draft.parents_BN is not None:
            draft = attrs.evolve(draft, parents_BN=draft.parents_BN.clamp(max=-1))
        return super().accept(batch, draft, scores)


class StaleBranch(ModelDrafter):
    """A drafter that forgets to move what was accepted in its own cache."""

    def __init__(self):
        super().__init__(branch="2/2/1")

    def _keep(self, batch, transfer, fed_BN):
        beyond = np.maximum(transfer.host.accepted - 1, 0)
        self._cached[: len(batch)] = batch.lengths + beyond
        self._cache.commit(batch, Kept(beyond))


DEFAULT = {"surroundings": {}}
FAULTS = [
    (conformance.AlignmentSuite, Shifted, "test_equals_reference", DEFAULT),
    (conformance.AlignmentSuite, Forgetful, "test_any_acceptance", {"right": "by-turns"}),
    (conformance.AlignmentSuite, Forgetful, "test_row_stops", {"place": "middle", "kind": "eos", "right": "two-right"}),
    (conformance.AcceptanceRuleSuite, Alike, "test_rows_are_judged_alone", {}),
    (conformance.AcceptanceRuleSuite, Generous, "test_first_wrong_token_ends_the_draft", {"wrong": 1}),
    (conformance.AcceptanceRuleSuite, Generous, "test_equals_reference", DEFAULT),
    (conformance.VerifierSuite, Late, "test_scores_are_the_targets", {}),
    (conformance.DrafterSuite, Rereading, "test_draft_model_is_fed_few_tokens", {"align": "eqspec"}),
    (conformance.DrafterSuite, Wary, "test_samples_are_the_targets", {}),
    (conformance.SchedulerSuite, Favouring, "test_nobody_waits_for_long", {"batch_size": 4}),
    (conformance.SchedulerSuite, Hasty, "test_a_stream_of_short_requests_does_not_starve_a_long_one", {}),
    (conformance.DraftLengthPolicySuite, Boundless, "test_draft_lengths_are_in_range", {}),
    (conformance.KVBackendSuite, KeysOnly, "test_append_and_shift", {"seed": 0}),
    (conformance.KVBackendSuite, Unarranged, "test_scatter", {"seed": 0}),
    (conformance.KVBackendSuite, Orphaned, "test_samples_begin_with_the_row_of_their_prompt", {}),
    (conformance.VerifierSuite, SiblingSeen, "test_scores_of_a_tree", {}),
    (
        conformance.AlignmentSuite,
        PathLeftInColumns,
        "test_trees",
        {"surroundings": {"kv": "slab", "schedule": "fixed"}},
    ),
    (conformance.KVBackendSuite, OneByOne, "test_paths_are_moved", {}),
    (conformance.AcceptanceRuleSuite, AnyParent, "test_tree_path", {}),
    (conformance.TreeDrafterSuite, StaleBranch, "test_what_stood_stays", {"align": "ragged"}),
]


@pytest.mark.wide(
    but=[
        "Orphaned-test_samples_begin_with_the_row_of_their_prompt",
        "Wary-test_samples_are_the_targets",
        "StaleBranch-test_what_stood_stays",
    ]
)
@pytest.mark.parametrize(
    ("suite", "fault", "test", "arguments"), FAULTS, ids=[f"{f[1].__name__}-{f[2]}" for f in FAULTS]
)
def test_suites_catch_faults(suite, fault, test, arguments):
    """A strategy with a fault fails the test that is there for it."""

    class Tests(suite):
        def make(self):
            return fault()

        def max_wait(self, batch_size):
            return 2 * batch_size

    with pytest.raises(AssertionError):
        getattr(Tests(), test)(**arguments)


def test_a_misspelt_capability_is_told():
    """A suite names a word that nobody knows and that is nearly a known one; a plugin's own words pass."""

    class Tests(conformance.DrafterSuite):
        offers = "chian"

        def make(self):
            made = ModelDrafter()
            made.offers = frozenset({self.offers})
            return made

    with pytest.raises(AssertionError, match=r"ModelDrafter has the word 'chian': did you mean 'chain'\?"):
        Tests().test_capabilities_are_spelt_right()
    Tests.offers = "of-my-own"
    Tests().test_capabilities_are_spelt_right()


class Asking(Fixed):
    """A policy that copies numbers to the device in every round, and waits for it."""

    def budget(self, batch):
        torch.zeros(3).to(batch.lengths_B.device).tolist()
        return super().budget(batch)


@pytest.mark.parametrize(("number", "most"), [("host_waits", 0), ("host_copies", 100)])
def test_waits_and_copies_are_told_with_the_number_that_allows_more(number, most):
    """A strategy that waits or copies too often learns which member of its suite allows more."""

    class Tests(conformance.DraftLengthPolicySuite):
        host_waits, host_copies = most, 0

        def make(self):
            return Asking(4)

    with pytest.raises(AssertionError, match=rf"per round \({number}\), got round"):
        Tests().test_as_on_a_gpu()


@pytest.mark.wide
def test_suite_without_make_says_what_is_missing():
    """A suite whose author has not written ``make`` says so, with its role."""
    with pytest.raises(NotImplementedError, match=r"make\(\) must return a drafter or its name"):
        conformance.DrafterSuite().test_finished_rows_are_not_run()


def test_plugin_offers_fixtures_and_suites(pytester):
    """In a folder that knows nothing of specframe fixtures are there, cuda tests skip, and a suite runs."""
    pytester.makeconftest("def pytest_addoption(parser): parser.addoption('--device')")
    pytester.makepyfile(
        """
        import pytest, torch
        from specframe_testing.conformance import AcceptanceRuleSuite

        class TestRule(AcceptanceRuleSuite):
            def make(self):
                return "greedy"

        def test_fixtures(tiny_target, tiny_draft, zoo, feeds):
            assert tiny_target.config.seed == tiny_draft.config.seed
            assert "llama" in zoo.NAMES
            assert feeds.rounds == []

        @pytest.mark.cuda
        def test_cuda():
            assert torch.cuda.is_available()
        """
    )
    result = pytester.runpytest_inprocess(
        "-q", "--strict-markers", "-k", "test_fixtures or test_cuda or test_shapes", "-p", "no:xdist"
    )
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] == 2 + torch.cuda.is_available(), outcomes
    assert outcomes.get("skipped", 0) == 1 - torch.cuda.is_available()
