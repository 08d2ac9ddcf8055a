"""The loop: draft, verify, accept, align, advance.

Nothing here knows a strategy's name, reads a clock or prints. ``watch.stage(name)`` tells observers where a round stands.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from specframe.contracts.drafts import Budget, Check, Draft, Scores, Transfer, Verdict, along
from specframe.contracts.reports import Outcome, RoundReport
from specframe.contracts.roles import AcceptanceRule, BudgetPolicy, Drafter
from specframe.contracts.round import Batch, Sequence
from specframe.devices.memory import out_of_memory
from specframe.engine.budgets import NOTHING, cut, usable
from specframe.engine.pool import Pool
from specframe.errors import SpecframeWarning
from specframe.forward.cached import CachedModel
from specframe.observe.watch import Watch
from specframe.plugins.compose import Composition
from specframe.text.sampling import shape, sharpen, undecided_places, undrawn_rows


def step(
    pool: Pool,
    use: Composition,
    target: CachedModel,
    watch: Watch,
    agree: Callable[[Budget], Budget],
    stand: Callable[[], None],
    check: Check | None = None,
) -> tuple[RoundReport, list[Outcome]] | None:
    """Decode one round of the sequences in ``pool``.

    Reading prompts is a round like any other, with nothing drafted: the verifier feeds what is not cached, and the
    target's own token is the bonus token. Every later round starts with all but a row's last token cached. Where a scheduler has
    long prompts read in pieces, each but the last is fed to the target and is no round: it gives no token. The drafter is told at
    once, and the piece is read again where that fails.

    Args:
        pool: the sequences.
        use: the strategies.
        target: the target with its cache.
        watch: told of stages; of the round, :func:`learn` and :func:`tell` tell.
        agree: returns rank 0's budget: what a policy has measured differs from rank to rank.
        stand: called before the round's tokens are taken over; other ranks may still fail until it returns.
        check: checks the round's numbers when they come to the host; None: the strategies' guards have checked them at once.

    Returns:
        The round's report, and outcomes for the drafter: the round's, and that of a piece of prompts that was read beside it. None:
        it gave no token, or everything has finished.
    """
    with watch.stage("schedule"):
        batch = use.scheduler.next_batch(pool)
    if batch is None:
        return None
    if batch.left:
        with watch.stage("prefill"):
            scores = use.verifier.score(batch, Draft(batch.tokens_BS[:, :0]))
            use.drafter.observe(piece_read(batch, scores, pool.newly_ended()))
        return None
    budget = NOTHING  # of rounds that read prompts, or start from others' rows
    if not (batch.prefill or batch.starts):
        budget = usable(agree(use.policy.budget(batch)), batch, use)
    with watch.stage("prefill" if batch.prefill else "draft"):
        draft = cut(use.drafter.propose(batch, budget), budget)
    with watch.stage("prefill" if batch.prefill else "verify"):
        scores = use.verifier.score(batch, draft)
    with watch.stage("accept"):
        shaped_BTV = shape(batch, draft.tokens_BN, scores.logits_BTV, draft.parents_BN)
        shaped = Scores(shaped_BTV, scores.hidden)
        judged = verdict_of(use.rule, batch, draft, shaped)
        verdict = judged.within(draft)
        shaped_BTV = along(verdict, shaped.logits_BTV)
        transfer = Transfer(
            draft, verdict, judged, undecided_places(batch, shaped_BTV), undrawn_rows(batch, draft), check
        )
    with watch.stage("align"):
        transfer = use.alignment.commit(batch, draft, transfer)
        target.settle(batch, transfer.kept)
    pieces = []
    if batch.beside is not None:
        with watch.stage("prefill"):
            pieces.append(piece_read(batch.beside, scores.beside or target.read(batch.beside), []))
    with watch.stage("accept"):
        logits_BTV = along(transfer.verdict, scores.logits_BTV)
        if transfer.verdict.path_BT is not verdict.path_BT:
            shaped_BTV = along(transfer.verdict, shaped.logits_BTV)
        computed = scores.computed or draft.tokens_BN.numel() + len(batch)
        report = pool.advance(batch, transfer, logits_BTV, shaped_BTV, stand, computed)
    return report, [Outcome(batch, draft, scores, transfer, report.lengths, pool.newly_ended()), *pieces]


def piece_read(batch: Batch, scores: Scores, ended: list[Sequence]) -> Outcome:
    """Return the outcome of a piece of prompts that the target has read, with the sequences that have ended since the last one."""
    return Outcome(batch, Draft(batch.tokens_BS[:, :0]), scores, None, batch.lengths, ended)


def learn(outcomes: list[Outcome], drafter: Drafter, watch: Watch) -> None:
    """Tell the drafter of a round, which has been taken over by then. A drafter that raises has missed it, and is started anew."""
    for outcome in outcomes:
        with watch.stage("draft" if outcome.transfer else "prefill"):
            drafter.observe(outcome)


@torch.inference_mode()
def tell(report: RoundReport, policy: BudgetPolicy, watch: Watch) -> None:
    """Tell the policy and the observers of a round.

    The round has been taken over by then: it is not tried again, and no sequence that it has ended is lost, whatever they raise. A
    policy without memory misses the round.
    """
    if not (report.prefill or report.starts):
        try:
            policy.observe(report)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            why = "the device's memory ran out when the draft-length policy was told of a round, which it misses"
            warnings.warn(why, SpecframeWarning, stacklevel=2)
    watch.round(report)


def verdict_of(rule: AcceptanceRule, batch: Batch, draft: Draft, scores: Scores) -> Verdict:
    """Return the rule's verdict; a rule that samples is shown greedy rows as distributions."""
    if "samples" in rule.offers:
        scores = Scores(sharpen(batch, scores.logits_BTV), scores.hidden)
    return rule.judge(batch, draft, scores)
