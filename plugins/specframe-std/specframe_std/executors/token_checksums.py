"""Tokens compared over ranks: a rank whose device computes otherwise is found out in the round in which its tokens part."""

from __future__ import annotations

import zlib

from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe_std.executors.tp_ranks import Ranks


class Compared(Observer):
    """Has the tokens of every round compared, and the order in which requests finish.

    Args:
        ranks: compare numbers at the end of a step.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def round(self, report: RoundReport) -> None:
        """Add a checksum of the round."""
        finished = [(sequence.request.key, sequence.finish_reason) for sequence in report.finished]
        self._ranks.add(zlib.crc32(repr((report.tokens, finished)).encode()))
