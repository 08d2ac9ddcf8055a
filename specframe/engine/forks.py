"""Forks: sequences that begin from a copy of the row of another of the same prompt that has read it, their parent."""

from __future__ import annotations

from collections.abc import Sequence as Several

from specframe.contracts.requests import Request
from specframe.contracts.round import Batch, Sequence, SequenceState


def parent_for(request: Request, live: Several[Sequence], samples: bool, late: bool) -> Sequence | None:
    """Return the live sequence that a request begins from, one of the same prompt that reads or has read it, or None if there is
    none.

    Args:
        request: it begins from another sample of its prompt, or from a request with an equal prompt.
        live: the sequences that have rows.
        samples: whether from another sample alone.
        late: whether a parent may have begun to decode, or have read tokens of its own; layers that keep a state have none of its
            start by then.
    """
    equal = same_samples if samples else same_prompt
    able = (other for other in live if other.parent is None or other.state is SequenceState.DECODING)
    alike = (other for other in able if equal(other.request, request))
    return next((other for other in alike if late or not (other.ready or other.token_ids)), None)


def same_samples(one: Request, other: Request) -> bool:
    """Return whether two requests are samples of one prompt."""
    return one.index == other.index


def same_prompt(one: Request, other: Request) -> bool:
    """Return whether two requests that arrived together have equal prompts, which whoever drafts reads for both or for neither."""
    together = one.arrival == other.arrival and one.speculate == other.speculate
    return same_samples(one, other) or (together and one.prompt_ids == other.prompt_ids)


def parent_to_copy(sequence: Sequence) -> Sequence | None:
    """Return the parent whose row a fork is yet to copy, or None if it is no fork, or has begun."""
    return sequence.parent if sequence.state in (SequenceState.WAITING, SequenceState.STARTING) else None


def begin_decoding(batch: Batch) -> None:
    """Let sequences that have their first token decode; their parents' rows are no longer needed by them."""
    for sequence in batch.sequences:
        if sequence.state is SequenceState.STARTING and sequence.parent:
            sequence.parent.forks -= 1
        sequence.state = SequenceState.DECODING


def rows_taken(live: Several[Sequence]) -> int:
    """Return the number of rows in use: of live sequences, and of finished parents whose forks wait.

    A live sequence counts before it has its row, too.
    """
    parents = {id(sequence.parent): sequence.parent for sequence in live if sequence.parent}
    return len(live) + sum(parent.finished and not parent.gone for parent in parents.values())
