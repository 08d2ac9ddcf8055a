"""The loop: draft, verify, accept, align, advance.

Nothing here knows a strategy's name, reads a clock or prints. ``watch.stage(name)`` tells observers where a round stands.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from specframe.contracts.drafts import Draft, RoundReport
from specframe.contracts.round import Batch
from specframe.contracts.run import Value
from specframe.engine.pool import Pool
from specframe.observe.watch import Watch
from specframe.plugins.compose import Composition
from specframe.text.sampling import shape, sharpen, undecided


@torch.inference_mode()
def step(pool: Pool, use: Composition, watch: Watch, agree: Callable[[Value], Value]) -> RoundReport | None:
    """Decode one round of the sequences in ``pool`` and return its report; None: it gave no token, or everything has finished.

    Reading prompts is a round like any other, with a draft length of 0: the verifier feeds what is not cached, and the
    target's own token is the bonus token. Every later round starts with all but a row's last token cached. Where a scheduler has
    long prompts read in pieces, each but the last is fed to the target and is no round: it gives no token.

    Args:
        pool: the sequences.
        use: the strategies.
        watch: observers.
        agree: returns the first rank's value: what a policy has measured differs from rank to rank.
    """
    with watch.stage("schedule"):
        batch = use.scheduler.next_batch(pool)
    if batch is None:
        return None
    if batch.left:
        with watch.stage("prefill"):
            use.verifier.score(batch, Draft(batch.tokens_BS[:, :0]))
        return None
    decodes = not (batch.prefill or batch.starts)
    draft_length = agree(use.policy.draft_length(batch)) if decodes else 0
    if use.rule.invariant:
        draft_length = min(draft_length, within_reach(batch))
    with watch.stage("prefill" if batch.prefill else "draft"):
        draft = use.drafter.propose(batch, draft_length)
    with watch.stage("prefill" if batch.prefill else "verify"):
        logits_BTV = use.verifier.score(batch, draft)
    with watch.stage("accept"):
        scores_BTV = shape(batch, draft.tokens_BK, logits_BTV)
        verdict = use.rule.judge(batch, draft, sharpen(batch, scores_BTV) if use.rule.sharpen else scores_BTV)
        if (undecided_BT := undecided(batch, scores_BTV)) is not None:
            verdict.mark(undecided_BT)
    with watch.stage("align"):
        verdict = use.alignment.commit(batch, draft, verdict)
        if undecided_BT is not None:
            verdict.mark(undecided_BT)  # an alignment may have made another
    with watch.stage("accept"):
        report = pool.advance(batch, draft, verdict, logits_BTV, scores_BTV)
    if decodes:
        use.policy.observe(report)
    watch.round(report)
    return report


def within_reach(batch: Batch) -> int:
    """Return the draft length that the row with the most tokens still to come can use.

    A draft longer than that would be cut for every row. A row nearer its end does not shorten the others' draft. Rules whose
    output depends on the draft length keep theirs: a row's tokens must not depend on its neighbours' lengths.
    """
    return int((batch.limits - batch.lengths).max()) - 1
