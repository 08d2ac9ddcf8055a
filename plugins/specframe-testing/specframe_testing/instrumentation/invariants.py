"""Invariant checks: in every forward and every round, a run verifies the invariants of lossless decoding.

- position: the position of a token is the number of real tokens before it in its row
- slot: a forward writes nothing else to the slot of a token that it feeds, and to no other slot than was announced
- mask: a query sees exactly its row's tokens up to itself
- cache: the visible slots of a row hold the row's tokens, each once, and no rejected token
- bonus: accepted draft tokens and the bonus token after them are the target's own choices
- stop: a row ends at its first stop token or at its limit, and nothing follows
- row: a row's tokens, keys and values are those of its own sequence

The strategies themselves run unchanged: :class:`Checks` instruments the acceptance rule and the alignment
(:mod:`specframe_testing.instrumentation.instrumented`), hands the run models that check what is fed
(:mod:`specframe_testing.instrumentation.cache_checks`), and watches the rounds.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from specframe.contracts.drafts import Acceptance, Draft, Scores, Transfer, along_path
from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe.contracts.round import Batch, Sequence
from specframe.model.run import Run
from specframe.plugins.compose import Composition
from specframe_testing.instrumentation.checked_run import CheckedRun
from specframe_testing.instrumentation.instrumented import CallListener, Instrumented, TappedAlignment
from specframe_testing.instrumentation.sequence_records import Accounts


class Checks(Accounts, Observer, CallListener):
    """The invariant checks of one run; a violation raises :class:`InvariantError`."""

    def around(self, use: Composition) -> Composition:
        """Return the composition with instrumentation of its acceptance rule and alignment."""
        self._lossless = "lossless" in use.rule.offers
        rule = Instrumented(use.rule, self, accept="by_rule")
        return attrs.evolve(use, rule=rule, alignment=TappedAlignment(use.alignment, self))

    def run(self, *args: Any, **kwargs: Any) -> Run:
        """Return a run whose models check each forward."""
        return CheckedRun(*args, **kwargs, checks=self)

    def by_rule(self, acceptance: Acceptance, batch: Batch, draft: Draft, scores: Scores) -> None:
        """Check that a lossless rule's tokens are the target's own: a greedy row's are its most likely ones."""
        self.batch(batch)
        if not self._lossless:
            return
        logits_BTV = along_path(acceptance, scores.logits_BTV)
        best_BT = logits_BTV.max(-1).values
        got_BT = logits_BTV.gather(2, acceptance.tokens_BT[..., None])[..., 0]
        own, possible = (got_BT == best_BT).tolist(), (got_BT > float("-inf")).tolist()
        # a row ends where there is no token to choose
        ends = (best_BT > float("-inf")).long().cumprod(1).sum(1).tolist()
        for row, accepted in enumerate(acceptance.accepted_B.tolist()):
            account = self.account(batch.sequences[row])
            if not 0 <= accepted < logits_BTV.shape[1]:
                drafted = logits_BTV.shape[1] - 1
                self.fail("bonus", row, account, f"{accepted} tokens of a draft of {drafted} are accepted")
            stands = own[row] if account.sequence.request.plan.greedy else possible[row]
            if accepted < ends[row] and not stands[accepted]:
                self.fail("bonus", row, account, "the bonus token is not the target's choice")
            if not all(own[row][: min(accepted, ends[row])]) and account.sequence.request.plan.greedy:
                self.fail("bonus", row, account, "an accepted token is not the target's choice")

    def committed(self, batch: Batch, order: list[Sequence], by_rule: Acceptance, stands: Transfer) -> None:
        """Check that what the alignment commits is the rule's result, row by row, or a shorter part of it."""
        host_accepted, host_tokens = stands.host.accepted, stands.host.tokens
        accepted_B, tokens_BT = stands.acceptance.accepted_B.cpu().numpy(), stands.acceptance.tokens_BT.cpu().numpy()
        given_B, rule_BT = by_rule.accepted_B.cpu().numpy(), by_rule.tokens_BT.cpu().numpy()
        differ = []
        for row, sequence in enumerate(order):
            account, accepted = self.account(sequence), int(accepted_B[row])
            if batch.sequences[row] is not sequence:
                self.fail("row", row, account, "the row's sequence changed during the alignment's commit")
            if accepted != host_accepted[row] or (tokens_BT[row] != host_tokens[row])[: accepted + 1].any():
                self.fail("bonus", row, account, "the committed tokens differ between host and device")
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
        """Raise the error for wrong acceptance results: rows have one another's, or a row's tokens are no row's."""
        row = differ[0]
        account, count = self.account(order[row]), int(accepted_B[row]) + 1
        others = [
            other
            for other in differ
            if other != row and given_B[other] + 1 >= count and (tokens_BT[row] == rule_BT[other])[:count].all()
        ]
        if len(differ) > 1 and others:
            self.fail("row", row, account, f"the row has the committed tokens of row {others[0]}")
        got, expected = tokens_BT[row, :count].tolist(), rule_BT[row, : given_B[row] + 1].tolist()
        self.fail(
            "bonus", row, account, f"the tokens {got} are committed, expected {expected} as accepted, or their start"
        )

    def round(self, report: RoundReport) -> None:
        """Check each row's gained tokens, and that the row ended where it had to."""
        for row, sequence in enumerate(report.sequences):
            account, gained = self.account(sequence), int(report.gained[row])
            accepted = int(report.detail.host.accepted[row])
            offered = report.detail.host.tokens[row, : accepted + 1].tolist()
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
