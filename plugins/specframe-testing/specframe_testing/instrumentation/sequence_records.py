"""An independent record of every sequence, to compare the pool's state with."""

from __future__ import annotations

import itertools

import attrs

from specframe.contracts.round import Batch, Sequence
from specframe_testing.instrumentation.invariant_error import InvariantError


@attrs.define(eq=False)
class Account:
    """Independent record of one sequence: its tokens, and when it must end."""

    number: int
    sequence: Sequence
    index: int
    tokens: list[int]
    prompt_length: int
    stops: frozenset[int]
    limit: int
    parents: tuple[int, ...]
    """Numbers of the parent, whose row was copied, and of the sequences whose rows that had copied, or nothing if it is no fork."""

    def continuation(self, tokens: list[int]) -> list[int]:
        """Return the tokens that may be added: cut after the first stop token, and at the limit."""
        tokens = tokens[: self.limit - len(self.tokens)]
        for place, token in enumerate(tokens):
            if token in self.stops:
                return tokens[: place + 1]
        return tokens

    @property
    def ended(self) -> bool:
        """Whether the sequence has ended, so that no token may follow."""
        return len(self.tokens) >= self.limit or (
            len(self.tokens) > self.prompt_length and self.tokens[-1] in self.stops
        )


class Accounts:
    """The accounts of a run's sequences, and the number of the current round."""

    def __init__(self) -> None:
        self.round_number = 1
        self._accounts: dict[tuple[int, int], Account] = {}
        self._numbers = itertools.count()

    def account(self, sequence: Sequence) -> Account:
        """Return a sequence's account; a new sequence's account is made from its request.

        One that goes on in place of another, which has given its row back, has that one's account. It is found by the
        request's key, whatever a strategy has made of the request.
        """
        request = sequence.request
        known = self._accounts.get(request.key)
        if known is None or (known.sequence is not sequence and known.sequence.finish_reason is not None):
            prompt = list(request.prompt_ids)
            parent = self.account(sequence.parent) if sequence.parent else None
            known = self._accounts[request.key] = Account(
                next(self._numbers),
                sequence,
                request.index,
                prompt,
                len(prompt),
                frozenset(request.stop_token_ids),
                sequence.limit,
                (parent.number, *parent.parents) if parent else (),
            )
        if known.sequence.finished:
            known.sequence = sequence
        return known

    def numbered(self, numbers: set[int]) -> list[Account]:
        """Return the accounts of these numbers."""
        return [account for account in self._accounts.values() if account.number in numbers]

    def fail(self, invariant: str, row: int, account: Account, detail: str) -> None:
        """Raise the error that names the broken invariant."""
        raise InvariantError(invariant, self.round_number, row, account.index, detail)

    def batch(self, batch: Batch) -> list[Account]:
        """Check that each row holds the tokens of its sequence, and return the sequences' accounts."""
        accounts = [self.account(sequence) for sequence in batch.sequences]
        on_device, rows = batch.lengths_B.tolist(), batch.tokens_BS.tolist()
        for row, account in enumerate(accounts):
            length = len(account.tokens)
            if not batch.lengths[row] == on_device[row] == length:
                got = f"{batch.lengths[row]} on the host and {on_device[row]} on the device"
                self.fail("row", row, account, f"the row's length is {got}, expected its {length} tokens")
            if rows[row][:length] != account.tokens:
                self.fail("row", row, account, "the row's tokens differ from its sequence's tokens")
            if account.ended:
                self.fail("stop", row, account, "the row decodes on after its end")
            if account in accounts[:row]:
                self.fail("row", row, account, "the sequence has two rows")
        return accounts
