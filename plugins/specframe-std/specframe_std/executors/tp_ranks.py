"""The ranks of a run: one value on all of them, blocks that end alike on all of them, and one exit status."""

from __future__ import annotations

import atexit
import contextlib
import json
import signal
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Never

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store
from transformers.utils.logging import disable_progress_bar

from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe.devices.out_of_memory import out_of_memory
from specframe.errors import ModelError, SpecframeError, SpecframeWarning, sentence
from specframe_std.executors.process_groups import Links

MEMORY, FAULT, LEFT = "memory", "fault", "left"
"""Why a rank did not come to the end of a block: its device's memory ran out, it raised an error, its program ended."""

PATIENCE = 5.0
"""Seconds for another rank to say why it has gone, or to take note of the exit status."""

PACE = 0.05
"""Seconds between two looks at the store."""


class RankError(SpecframeError):
    """Another rank has failed, or its program has ended."""


class Ranks:
    """This process among those that decode the same rows.

    Args:
        timeout: seconds that a rank waits for the others.
    """

    def __init__(self, timeout: float) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.links = Links(timeout)
        self._timeout, self._store = timeout, _get_default_store()
        self._inside = self._over = self._stood = False
        self._retries = self._sum = 0
        if self.rank:
            warnings.filterwarnings("ignore", category=SpecframeWarning)  # rank 0 shows them
            disable_progress_bar()
        atexit.register(self._leave, "its program has ended")

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value."""
        if self._inside:
            return self._from_first(value)
        with self.barrier():
            return self._from_first(value)

    def _from_first(self, value: Any) -> Any:
        held = [value]
        dist.broadcast_object_list(held, src=0, group=self.links.hosts, device=torch.device("cpu"))
        return held[0]

    def add(self, number: int) -> None:
        """Have a number compared at the end of the block: it has to be the same on every rank."""
        self._sum = (self._sum * 1_000_003 + number) % 2**61

    @contextlib.contextmanager
    def barrier(self) -> Iterator[Callable[[], None]]:
        """End a block alike on every rank, see :meth:`specframe.contracts.engine.RankedExecutor.barrier`."""
        if self._over:
            raise RankError("another rank has failed before, or has ended: no further run is possible in this process")
        self._inside, self._stood, self._sum = True, False, 0
        try:
            yield self._stand
            self._compare()
        except Exception as error:  # whatever a strategy raises
            self._part(error)
        finally:
            self._inside = False

    def _stand(self) -> None:
        """Wait until every rank has come so far."""
        self._compare()
        self._stood = True

    def _compare(self) -> None:
        """Wait for the other ranks; raise :class:`ModelError` where their numbers are others."""
        mine = torch.tensor([self._sum])
        found = [torch.zeros_like(mine) for _ in range(self.size)]
        dist.all_gather(found, mine, group=self.links.hosts)
        if others := [rank for rank, one in enumerate(found) if not torch.equal(one, found[0])]:
            raise ModelError(
                f"rank {others[0]} has other tokens, or another model, than rank 0: expected equal devices and files on every rank"
            )

    def _part(self, error: Exception) -> Never:
        """Report to the other ranks why this one did not come to the end of a block, and raise what all of them raise."""
        memory = isinstance(error, RuntimeError) and out_of_memory(error)
        retried = memory and not self._stood
        mine = {"rank": self.rank, "kind": MEMORY if retried else FAULT, "told": sentence(error)}
        if lost(error) and not self._said(self._key, PATIENCE):
            mine |= {"kind": LEFT, "told": "another rank has ended without a word"}
        first = self._first(mine)
        traceback.clear_frames(error.__traceback__)  # they may hold a group
        self.links.cut()
        if first["kind"] == LEFT:
            self._over = True
        else:
            self._go_on()
        if first["kind"] == MEMORY:
            raise error if retried else torch.OutOfMemoryError(first["told"]) from None
        if first["told"] == sentence(error) and not memory:  # one rank cannot go on alone after a committed round
            raise error
        own = first["kind"] == LEFT and first["rank"] == self.rank
        raise RankError(first["told"] if own else f"rank {first['rank']}: {first['told']}") from error

    def _go_on(self) -> None:
        """Connect the ranks again, after every one of them has come here."""
        self._retries += 1
        try:
            self.links.tie()
        except RuntimeError as error:  # of torch's stores and groups
            self._over = True
            raise RankError(f"the ranks cannot be connected again: {sentence(error)}") from error

    @property
    def _key(self) -> str:
        """The place in the store where the first rank to fail says why."""
        return f"specframe/parted/{self._retries}"

    def _first(self, mine: dict[str, Any]) -> dict[str, Any]:
        """Return what the first rank to fail has said, this one's own words if that is it."""
        return json.loads(self._store.compare_set(self._key, "", json.dumps(mine)))

    def _said(self, key: str, seconds: float) -> bool:
        """Return whether the store has a key, waiting for it so long."""
        end = time.monotonic() + seconds
        while not (found := self._store.check([key])) and time.monotonic() < end:
            time.sleep(PACE)
        return found

    def close(self) -> None:
        """Close the links, after the last block on every rank."""
        atexit.unregister(self._leave)
        self.links.cut()
        self._over = True

    def _leave(self, told: str) -> None:
        """Report to ranks that are in a block that this one will come to none any more."""
        with contextlib.suppress(RuntimeError):  # the store has gone with rank 0
            if not self._over:
                self._first({"rank": self.rank, "kind": LEFT, "told": told})
                self.links.cut()
        self._over = True

    def end(self, status: int, told: str) -> int:
        """Return rank 0's exit status, after telling it or waiting for it, see the protocol."""
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it when one rank has ended
        with contextlib.suppress(RuntimeError):  # the store has gone with rank 0
            if self.rank:
                return self._follow(status, told)
            self._store.set("specframe/status", str(status))
            if status:
                self._leave(told)
                for rank in range(1, self.size):
                    self._said(f"specframe/noted/{rank}", PATIENCE)
        return status

    def _follow(self, status: int, told: str) -> int:
        """Return rank 0's exit status; where this rank fails alone, rank 0 learns why."""
        if status:
            self._leave(told)
        if self._said("specframe/status", self._timeout):
            status = int(self._store.get("specframe/status"))
        self._store.set(f"specframe/noted/{self.rank}", "")
        return status


class Compared(Observer):
    """Has the tokens of every round compared over ranks, and the order in which requests finish.

    A rank whose device computes otherwise is found out in the round in which its tokens part.

    Args:
        ranks: compare numbers at the end of a step.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def round(self, report: RoundReport) -> None:
        """Add a checksum of the round."""
        finished = [(sequence.request.key, sequence.finish_reason) for sequence in report.finished]
        self._ranks.add(zlib.crc32(repr((report.tokens, finished)).encode()))


def lost(error: BaseException | None) -> bool:
    """Return whether an error, or what caused it, is that another rank has closed its links."""
    while error is not None:
        if isinstance(error, dist.DistError) or "gloo/transport" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
