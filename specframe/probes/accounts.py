"""A record of every sequence, kept apart from the pool, that what the pool holds can be compared with."""

from __future__ import annotations

import itertools

import attrs

from specframe.contracts.round import Batch, Sequence
from specframe.errors import InvariantError


@attrs.define(eq=False)
class Account:
    """What is known of one sequence apart from the pool: its tokens, and when it must end."""

    number: int
    sequence: Sequence
    index: int
    tokens: list[int]
    prompt_length: int
    stops: frozenset[int]
    limit: int
    parent: int | None
    """The number of the sequence whose row it copied."""

    def continuation(self, tokens: list[int]) -> list[int]:
        """Return the tokens that may be added, cut at the first stop and at the limit."""
        tokens = tokens[: self.limit - len(self.tokens)]
        for place, token in enumerate(tokens):
            if token in self.stops:
                return tokens[: place + 1]
        return tokens

    @property
    def ended(self) -> bool:
        """Whether nothing may follow."""
        return len(self.tokens) >= self.limit or (
            len(self.tokens) > self.prompt_length and self.tokens[-1] in self.stops
        )


class Accounts:
    """The accounts of a run's sequences, and the number of the round that is under way."""

    def __init__(self) -> None:
        self.round_number = 1
        self._accounts: dict[int, Account] = {}
        self._numbers = itertools.count()

    def account(self, sequence: Sequence) -> Account:
        """Return what is known of a sequence; at first sight its request tells."""
        if id(sequence) not in self._accounts:
            request = sequence.request
            prompt = list(request.prompt_ids)
            self._accounts[id(sequence)] = Account(
                next(self._numbers),
                sequence,
                request.index,
                prompt,
                len(prompt),
                frozenset(request.stop_token_ids),
                sequence.limit,
                self.account(sequence.parent).number if sequence.parent else None,
            )
        return self._accounts[id(sequence)]

    def fail(self, invariant: str, row: int, account: Account, detail: str) -> None:
        """Raise the error that names what broke."""
        raise InvariantError(invariant, self.round_number, row, account.index, detail)

    def batch(self, batch: Batch) -> list[Account]:
        """Check that the batch holds the sequences' own tokens, and return their accounts."""
        accounts = [self.account(sequence) for sequence in batch.sequences]
        on_device, rows = batch.lengths_B.tolist(), batch.tokens_BS.tolist()
        for row, account in enumerate(accounts):
            length = len(account.tokens)
            if not batch.lengths[row] == on_device[row] == length:
                got = f"{batch.lengths[row]} on the host and {on_device[row]} on the device"
                self.fail("row", row, account, f"the row's length is {got}, expected its {length} tokens")
            if rows[row][:length] != account.tokens:
                self.fail("row", row, account, "the row's tokens are not those its sequence was given")
            if account.ended:
                self.fail("stop", row, account, "the row decodes on after its end")
            if account in accounts[:row]:
                self.fail("row", row, account, "the sequence has two rows")
        return accounts
