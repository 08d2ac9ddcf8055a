"""The gains of a round: how many of the acceptance result's tokens each row takes, and which rows end with them.

Rows are gone through one after the other, on the host: for as many rows as a batch has, that takes less time than arrays do.
"""

from __future__ import annotations

import attrs
import numpy as np

from specframe.contracts.drafts import Draft, Numbers
from specframe.contracts.requests import FinishReason
from specframe.contracts.round import Sequence


@attrs.frozen
class Gains:
    """What a round brings, with one entry per row."""

    tokens: list[list[int]]
    """The tokens that each row gains, cut at its end."""
    drafted: list[int]
    """Number of real draft tokens, up to the row's limit."""
    accepted: list[int]
    """Number of accepted draft tokens among those gained."""
    reasons: dict[int, FinishReason]
    """Why rows end, by row, in order; the others go on."""


def gains(
    sequences: list[Sequence],
    draft: Draft,
    numbers: Numbers,
    tokens: np.ndarray,
    lengths: np.ndarray,
    now: float | None,
) -> Gains:
    """Return the gains of a round.

    Args:
        sequences: the rows.
        draft: the round's draft.
        numbers: those of the acceptance result, with ids that there are at all accepted places.
        tokens: the rows' tokens on the host, (B, S).
        lengths: the rows' lengths before the round, (B,).
        now: the clock's time, or None if no row has a limit of time.
    """
    faults, counts = first_faults(numbers.undecided), numbers.counts
    found = Gains([], [], [], {})
    rows = zip(sequences, lengths.tolist(), strict=True)
    given = zip(numbers.accepted.tolist(), numbers.tokens.tolist(), strict=True)
    for row, ((sequence, length), (accepted, ids)) in enumerate(zip(rows, given, strict=True)):
        room = sequence.limit - length
        count = min(accepted + 1, room)
        reason: FinishReason | None = None
        stops = sequence.request.stop_token_ids
        stopped = None if stops.isdisjoint(ids[:count]) else next(n for n, one in enumerate(ids, 1) if one in stops)
        count = stopped or count
        if count == room or (now is not None and timed_out(sequence, now)):
            reason = "length"
        if faults is not None and faults[row] < count:
            count, reason = faults[row], "error"
        if sequence.request.stop_checks:
            place = stop_place(sequence, np.concatenate([tokens[row, :length], ids[:count]]), count)
            count, reason = (count, reason) if place is None else (place + 1, "stop")
        if count == stopped:
            reason = "eos"
        drafted = draft.nodes if counts is None else int(counts[row])
        if draft.parents_BN is None:
            drafted = min(drafted, room - 1)  # as for the row alone: its token at the limit is the bonus token
        found.tokens.append(ids[:count])
        found.drafted.append(drafted)
        found.accepted.append(min(accepted, count, drafted, room - 1))
        if reason is not None:
            found.reasons[row] = reason
    return found


def timed_out(sequence: Sequence, now: float) -> bool:
    """Return whether a row's ``max_time`` has passed. It keeps the tokens of this round."""
    limit = sequence.request.max_time
    return limit is not None and now - sequence.scheduled_at >= limit


def stop_place(sequence: Sequence, ids: np.ndarray, count: int) -> int | None:
    """Return the index of the fresh token at which a row's stop checks end it, or None if it goes on. Of all its tokens, (L,), the
    last ``count`` are fresh."""
    found = None
    for check in sequence.request.stop_checks:
        place = check.first(ids, len(sequence.request.prompt_ids), count)
        if place is not None:
            ids, count, found = ids[: len(ids) - count + place + 1], place + 1, place
    return found


def first_faults(undecided: np.ndarray | None) -> list[int] | None:
    """Return the first place of each row without a token to choose (all places, in a sound row), or None if all are sound."""
    if undecided is None or b"\1" not in undecided.tobytes():  # numpy's own functions take longer for so few values
        return None
    return np.where(undecided.any(axis=1), undecided.argmax(axis=1), undecided.shape[1]).tolist()
