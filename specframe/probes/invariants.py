"""Invariant checks: a run that verifies, forward by forward and round by round, what every lossless combination keeps.

=========  ==========================================================================================
position   position of a token = number of real tokens before it in its row
mask       a query sees exactly its row's tokens up to itself
cache      what is cached for a row describes the row's tokens, each once, and nothing that was rejected
bonus      what stands of a draft and the token after it are the target's own
stop       a row ends at its first stop token or at its limit, and nothing follows
row        a row's tokens, keys and values are those of its own sequence
=========  ==========================================================================================

The strategies themselves run unchanged: :class:`Checks` puts a checking object around the acceptance rule and the
alignment, hands the run models that check what is fed (:mod:`specframe.probes.ledger`), and watches the rounds.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import torch

from specframe.contracts.drafts import Draft, RoundReport, Scores, Verdict, along
from specframe.contracts.roles import AcceptanceRule, Alignment
from specframe.contracts.round import Batch, Sequence
from specframe.forward.run import Run
from specframe.observe.watch import Watcher
from specframe.plugins.compose import Composition
from specframe.probes.accounts import Accounts
from specframe.probes.ledger import CheckedRun


class Checks(Accounts, Watcher):
    """The invariant checks of one run; a violation raises :class:`specframe.errors.InvariantError`."""

    def around(self, use: Composition) -> Composition:
        """Return the composition with its acceptance rule and alignment checked."""
        rule: Any = CheckedRule(use.rule, self)
        alignment: Any = CheckedAlignment(use.alignment, self)
        return attrs.evolve(use, rule=rule, alignment=alignment)

    def run(self, *args: Any, **kwargs: Any) -> Run:
        """Return a run whose models check what they are fed."""
        return CheckedRun(*args, **kwargs, checks=self)

    def judged(self, batch: Batch, verdict: Verdict, logits_BTV: torch.Tensor) -> None:
        """Check that a lossless rule's tokens are the target's own: a greedy row's are its most likely ones."""
        best_BT = logits_BTV.max(-1).values
        got_BT = logits_BTV.gather(2, verdict.tokens_BT[..., None])[..., 0]
        own = torch.where(torch.isfinite(got_BT), got_BT == best_BT, False).tolist()
        possible = torch.isfinite(got_BT).tolist()
        for row, accepted in enumerate(verdict.accepted_B.tolist()):
            account = self.account(batch.sequences[row])
            if not 0 <= accepted < logits_BTV.shape[1]:
                drafted = logits_BTV.shape[1] - 1
                self.fail("bonus", row, account, f"{accepted} tokens of a draft of {drafted} are accepted")
            stands = own[row] if account.sequence.request.plan.greedy else possible[row]
            if not stands[accepted]:
                self.fail("bonus", row, account, "the bonus token is not the target's choice")
            if not all(own[row][:accepted]) and account.sequence.request.plan.greedy:
                self.fail("bonus", row, account, "an accepted token is not the target's choice")

    def committed(self, batch: Batch, order: list[Sequence], given: Verdict, stands: Verdict) -> None:
        """Check that what stands after the alignment is the rule's verdict, row by row, or a shorter part of it."""
        host_accepted, host_tokens = stands.host()
        accepted_B, tokens_BT = stands.accepted_B.cpu().numpy(), stands.tokens_BT.cpu().numpy()
        given_B, rule_BT = given.accepted_B.cpu().numpy(), given.tokens_BT.cpu().numpy()
        differ = []
        for row, sequence in enumerate(order):
            account, accepted = self.account(sequence), int(accepted_B[row])
            if batch.sequences[row] is not sequence:
                self.fail("row", row, account, "the row's sequence changed during the alignment's commit")
            if accepted != host_accepted[row] or (tokens_BT[row] != host_tokens[row])[: accepted + 1].any():
                self.fail("bonus", row, account, "the tokens that stand differ between host and device")
            longer = not 0 <= accepted <= given_B[row]
            if longer or (tokens_BT[row] != rule_BT[row])[: accepted + 1].any():
                differ.append(row)
        if differ:
            self._name_difference(order, differ, accepted_B, tokens_BT, given_B, rule_BT)

    def _name_difference(
        self,
        order: list[Sequence],
        differ: list[int],
        accepted_B: np.ndarray,
        tokens_BT: np.ndarray,
        given_B: np.ndarray,
        rule_BT: np.ndarray,
    ) -> None:
        """Tell rows that have each other's verdicts from rows with tokens of nobody's."""
        row = differ[0]
        account, count = self.account(order[row]), int(accepted_B[row]) + 1
        others = [
            other
            for other in differ
            if other != row and given_B[other] + 1 >= count and (tokens_BT[row] == rule_BT[other])[:count].all()
        ]
        if len(differ) > 1 and others:
            self.fail("row", row, account, f"the row was given what stands of row {others[0]}")
        got, expected = tokens_BT[row, :count].tolist(), rule_BT[row, : given_B[row] + 1].tolist()
        self.fail("bonus", row, account, f"the tokens {got} stand, expected {expected} as judged, or their start")

    def round(self, report: RoundReport) -> None:
        """Check what every row gained, and that it ended where it had to."""
        for row, sequence in enumerate(report.sequences):
            account, gained = self.account(sequence), int(report.gained[row])
            accepted = int(report.verdict.host()[0][row])
            offered = report.verdict.host()[1][row, : accepted + 1].tolist()
            expected = account.continuation(offered)
            if gained > len(expected):
                after = f"expected {len(expected)}: up to its first stop token, or to its limit of {account.limit}"
                self.fail("stop", row, account, f"the row gained {gained} tokens, {after}")
            if gained < len(expected) and not sequence.finished:
                self.fail("stop", row, account, f"the row gained {gained} tokens, expected {len(expected)}")
            account.tokens.extend(offered[:gained])
            if account.ended and not sequence.finished:
                self.fail("stop", row, account, "the row goes on after its end")
            if sequence.finished and sequence.token_ids != account.tokens[account.prompt_length :]:
                self.fail("row", row, account, "the finished sequence holds other tokens than it was given")
        self.round_number += 1


class CheckedRule:
    """An acceptance rule whose verdicts are checked against the target's logits, if it claims to be lossless."""

    def __init__(self, rule: AcceptanceRule, checks: Checks) -> None:
        self._rule, self._checks = rule, checks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rule, name)

    def judge(self, batch: Batch, draft: Draft, scores: Scores) -> Verdict:
        """Return the rule's verdict after checking it."""
        self._checks.batch(batch)
        verdict = self._rule.judge(batch, draft, scores)
        if "lossless" in self._rule.offers:
            self._checks.judged(batch, verdict, along(verdict, scores.logits_BTV))
        return verdict


class CheckedAlignment:
    """An alignment that may shorten a verdict, and change nothing else."""

    def __init__(self, alignment: Alignment, checks: Checks) -> None:
        self._alignment, self._checks = alignment, checks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._alignment, name)

    def commit(self, batch: Batch, draft: Draft, verdict: Verdict) -> Verdict:
        """Return what stands after checking it; the verdict is copied first, for it may be written to."""
        order = list(batch.sequences)
        given = attrs.evolve(verdict, accepted_B=verdict.accepted_B.clone(), tokens_BT=verdict.tokens_BT.clone())
        stands = self._alignment.commit(batch, draft, verdict)
        self._checks.committed(batch, order, given, stands)
        return stands
