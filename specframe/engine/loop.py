"""The loop: draft, verify, accept, align, advance.

Nothing here knows a strategy's name, reads a clock or prints. ``watch.stage(name)`` reports to observers which stage a round is in.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import cast

import numpy as np

from specframe.contracts.drafts import Acceptance, Budget, Check, Draft, Scores, Transfer, along_path
from specframe.contracts.reports import Outcome, RoundReport
from specframe.contracts.roles import AcceptanceRule, BudgetPolicy, CapturedDrafter, Drafter
from specframe.contracts.round import Batch, Sequence
from specframe.devices.out_of_memory import out_of_memory
from specframe.engine.budgets import NOTHING, cut, usable
from specframe.engine.open_run import Flight, Opened
from specframe.engine.pool import Pool
from specframe.errors import SpecframeWarning
from specframe.model.cached import CachedModel
from specframe.observe.watch import Watch
from specframe.plugins.compose import Composition
from specframe.text.sampling import apply_processors, one_hot_greedy_rows, undecided_places, undrawn_rows


def launch(
    pool: Pool, opened: Opened, watch: Watch, broadcast: Callable[[Budget], Budget], after: Flight | None
) -> Flight | None:
    """Give the device one round of the sequences in ``pool``, to the tokens and lengths that the next round begins with.

    Prefill is a round like any other, with nothing drafted: the verifier feeds what is not cached, and the target's own token is
    the bonus token. Every later round starts with all but a row's last token cached. Where a scheduler splits long prompts, each
    chunk but the last is fed to the target and is no round: it gives no token. The drafter receives it at once, and the chunk is
    fed again where that fails.

    Args:
        pool: the sequences.
        opened: the run, with its strategies and the target's cache.
        watch: receives stages; :func:`learn` and :func:`report_round` report the round.
        broadcast: returns rank 0's budget: what a policy has measured differs from rank to rank.
        after: a round that has not landed, of the same rows, or None.

    Returns:
        The round, which :func:`land` takes over, or None: it gave no token, or everything has finished.
    """
    use, captured = opened.use, opened.captured
    if after is not None and after.most_B is not None:
        pool.expect(after.batch, after.most_B)
    with watch.stage("schedule"):
        batch = use.scheduler.next_batch(pool)
    if batch is None:
        return None
    if batch.left:
        with watch.stage("prefill"):
            scores = use.verifier.score(batch, Draft(batch.tokens_BS[:, :0]))
            use.drafter.observe(prefilled(batch, scores, pool.newly_ended()))
        return None
    reads = batch.prefill or batch.starts  # nothing is drafted, and the drafter receives what is read
    plain, budget = opened.plain and not reads, NOTHING
    if not (plain or reads):
        budget = usable(broadcast(use.policy.budget(batch)), batch, use)
    kind = None if captured is None else captured.kind(batch, budget)
    decide = functools.partial(decided, use, opened.run.target, watch, opened.check)
    append = functools.partial(pool.append, once_more=opened.deferred)
    flight = None if captured is None or kind is None else captured.decoded(kind, batch, budget, decide, append)
    if flight is None:
        if plain:
            draft = Draft(batch.tokens_BS[:, :0])
        else:
            with watch.stage("prefill" if batch.prefill else "draft"):
                propose = use.drafter.propose if kind is None else cast(CapturedDrafter, use.drafter).draw
                draft = cut(propose(batch, budget), budget)
        flight = decide(batch, draft)
        flight.told = plain
        with watch.stage("accept"):
            flight.transfer.send()
            append(batch, flight.transfer.acceptance)
    flight.most_B = most_gained(flight.draft, len(batch)) if opened.deferred else None
    return flight


def decided(
    use: Composition, target: CachedModel, watch: Watch, check: Check | None, batch: Batch, draft: Draft
) -> Flight:
    """Return a round of which the device has been given all but that its tokens are appended."""
    with watch.stage("prefill" if batch.prefill else "verify"):
        scores = use.verifier.score(batch, draft)
    with watch.stage("accept"):
        processed_BTV = apply_processors(batch, draft.tokens_BN, scores.logits_BTV, draft.parents_BN)
        processed = scores if processed_BTV is scores.logits_BTV else Scores(processed_BTV, scores.hidden)
        by_rule = acceptance_of(use.rule, batch, draft, processed)
        acceptance = by_rule.within(draft)
        processed_BTV = along_path(acceptance, processed.logits_BTV)
        transfer = Transfer(
            draft, acceptance, by_rule, undecided_places(batch, processed_BTV), undrawn_rows(batch, draft), check
        )
    with watch.stage("align"):
        transfer = use.alignment.commit(batch, draft, transfer)
        target.commit(batch, transfer.kept)
        logits_BTV = along_path(transfer.acceptance, scores.logits_BTV)
        if transfer.acceptance.path_BT is not acceptance.path_BT:
            processed_BTV = along_path(transfer.acceptance, processed.logits_BTV)
    pieces = []
    if batch.mixed is not None:
        with watch.stage("prefill"):
            pieces.append(prefilled(batch.mixed, scores.mixed or target.read(batch.mixed), []))
    computed = scores.computed or draft.tokens_BN.numel() + len(batch.sequences)
    return Flight(batch, draft, scores, transfer, logits_BTV, processed_BTV, computed, pieces)


def launched(opened: Opened, watch: Watch) -> Flight | None:
    """Take the round that was launched and has not landed, or None where all of its rows have ended: its prompts stay read."""
    flight = opened.ahead.pop() if opened.ahead else None
    if flight is not None and all(sequence.finished for sequence in flight.batch.sequences):
        learn(flight.pieces, opened.use.drafter, watch)
        return None
    return flight


def land(
    flight: Flight, pool: Pool, watch: Watch, commit_point: Callable[[], None]
) -> tuple[RoundReport, list[Outcome]]:
    """Read a round's numbers and take its tokens over.

    Args:
        flight: the round.
        pool: the sequences.
        watch: receives stages.
        commit_point: called before the round's tokens are taken over; other ranks may still fail until it returns.

    Returns:
        The round's report, and outcomes for the drafter: the round's, unless it received it before, and that of a mixed batch's
        prefill chunk.
    """
    batch, transfer = flight.batch, flight.transfer
    with watch.stage("accept"):
        report = pool.advance(batch, transfer, flight.logits_BTV, flight.processed_BTV, commit_point, flight.computed)
    lengths = report.lengths if len(report.lengths) == len(batch.lengths) else batch.lengths  # some rows ended before
    return report, [] if flight.told else [outcome(flight, pool, lengths), *flight.pieces]


def outcome(flight: Flight, pool: Pool, lengths: np.ndarray) -> Outcome:
    """Return the outcome of a round for the drafter; ``lengths``: of the rows before it, or the most that they were."""
    return Outcome(flight.batch, flight.draft, flight.scores, flight.transfer, lengths, pool.newly_ended())


def most_gained(draft: Draft, rows: int) -> np.ndarray:
    """Return the most tokens that each row gains by a draft, (B,)."""
    return 1 + np.broadcast_to(draft.depth if draft.counts is None else np.minimum(draft.counts, draft.depth), rows)


def prefilled(batch: Batch, scores: Scores, ended: list[Sequence]) -> Outcome:
    """Return the outcome of a prefill chunk that the target has read, with the sequences that have ended since the last one."""
    return Outcome(batch, Draft(batch.tokens_BS[:, :0]), scores, None, batch.lengths, ended)


def learn(outcomes: list[Outcome], drafter: Drafter, watch: Watch) -> None:
    """Report a round that has been taken over to the drafter. A drafter that raises has missed it, and is started anew."""
    for outcome in outcomes:
        with watch.stage("draft" if outcome.transfer else "prefill"):
            drafter.observe(outcome)


def report_round(report: RoundReport, policy: BudgetPolicy, watch: Watch) -> None:
    """Report a round to the policy and the observers.

    The round has been taken over by then: it is not tried again, and no sequence that it has ended is lost, whatever they raise. A
    policy without memory misses the round.
    """
    if not (report.prefill or report.starts):
        try:
            policy.observe(report)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            why = "the device's memory ran out when the draft-length policy received a round, which it misses"
            warnings.warn(why, SpecframeWarning, stacklevel=2)
    watch.round(report)


def acceptance_of(rule: AcceptanceRule, batch: Batch, draft: Draft, scores: Scores) -> Acceptance:
    """Return the rule's result; a rule that samples is shown greedy rows as distributions."""
    if "samples" in rule.offers:
        scores = Scores(one_hot_greedy_rows(batch, scores.logits_BTV), scores.hidden)
    return rule.accept(batch, draft, scores)
