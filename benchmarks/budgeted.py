"""Cells of a benchmark within a budget of seconds: one after the other, in a process that may crash or lose its device."""

from __future__ import annotations

import importlib
import multiprocessing
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

SLACK = 0.1
"""Share of the whole budget by which a cell may pass its section's end before its process is ended: compilers are slow at times."""

Row = dict[str, Any]


class AbsentError(Exception):
    """What a cell measures does not exist on this device."""


@attrs.frozen
class Cell:
    """One measurement: a method of the measuring class, and its arguments."""

    section: str
    name: str
    measure: str
    options: Mapping[str, Any]
    seconds: float
    """About how long it takes. A cell that takes longer than what is left is not begun."""
    fresh: bool = False
    """Whether it is measured in a new process."""


def measured(
    cells: Iterable[Cell],
    shares: Mapping[str, float],
    budget: float,
    ask: Callable[[Cell, float, float], Row],
    keep: Callable[[list[Row], Row], None],
    clock: Callable[[], float] = time.monotonic,
) -> list[Row]:
    """Measure cells in their order, then those that did not fit into their section and fit into what is left of the budget.

    Args:
        cells: section by section.
        shares: of each section, in the cells' order; what a section leaves is the next one's.
        budget: seconds of all sections.
        ask: measures a cell, as :meth:`Worker.ask` does.
        keep: gets all rows after each cell, and its own.
        clock: returns the seconds.
    """
    begun, total, passed = clock(), sum(shares.values()), 0.0
    last, ends, rows, late = begun + budget, dict[str, float](), list[Row](), list[tuple[Cell, Row]]()
    for section, share in shares.items():
        passed += share
        ends[section] = begun + budget * passed / total

    def take(cell: Cell, row: Row, end: float) -> None:
        started = clock()
        if cell.seconds > end - started:
            left = f"{max(end - started, 0):.0f} s were left, and it takes about {cell.seconds:.0f}"
            row |= {"outcome": "skipped", "reason": left}
            late.append((cell, row))
        else:
            row.pop("reason", None)
            row |= ask(cell, min(end + SLACK * budget, last) - started, last - started)
            row["seconds"] = round(clock() - started, 2)
        keep(rows, row)

    for cell in cells:
        rows.append({"section": cell.section, "cell": cell.name})
        take(cell, rows[-1], ends[cell.section])
    for cell, row in late[:]:
        take(cell, row, last)
    return rows


class Worker:
    """A process that measures cells by a class of a module; when it has ended, another one goes on.

    Args:
        module, kind: names of the module and of the class. Its method ``recover`` is called after an error, and returns whether the
            process can go on.
        settings: arguments of the class.
    """

    def __init__(self, module: str, kind: str, settings: Mapping[str, Any]) -> None:
        self._given = module, kind, settings
        self._spawn = multiprocessing.get_context("spawn")  # CUDA does not outlive a fork
        self._process: Any = None

    def ask(self, cell: Cell, seconds: float, left: float) -> Row:
        """Return the ``outcome`` ("measured", "skipped" or "failed") of a cell, with ``figures``, or with the ``reason``.

        Args:
            cell: what is measured.
            seconds: until its process is ended. To begin one is not counted: it may import from a cold disk.
            left: seconds until then in all.
        """
        last = time.monotonic() + left
        if cell.fresh:
            self.close()
        row: Row = {"outcome": "failed", "reason": f"it took longer than {seconds:.0f} s, so its process was ended"}
        try:
            if self._process is None and (fault := self._start(left)):
                return fault
            self._mine.send((cell.measure, dict(cell.options)))
            if self._mine.poll(max(0, min(seconds, last - time.monotonic()))):
                row = self._mine.recv()
                if not row.pop("lost"):
                    return row
        except (EOFError, OSError):
            self._process.join()
            row["reason"] = f"its process ended with status {self._process.exitcode}"
        self.close()
        return row

    def _start(self, left: float) -> Row | None:
        """Begin a process, and return why it cannot measure, or None if it can."""
        self._mine, theirs = self._spawn.Pipe()
        self._process = self._spawn.Process(target=work, args=(theirs, *self._given))
        self._process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        if not self._mine.poll(left):
            fault = {"outcome": "failed", "reason": f"its process was not ready after {left:.0f} s"}
        elif (fault := self._mine.recv()) is None:
            return None
        self.close()
        return fault

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._mine.close()
            self._process.kill()
            self._process.join()
            self._process = None


def work(connection: Any, module: str, kind: str, settings: Mapping[str, Any]) -> None:
    """Measure what a connection asks for, until it is closed or the device is lost; begin by telling what hinders, or None."""
    try:
        measures: Any = getattr(importlib.import_module(module), kind)(**settings)
    except Exception as error:
        connection.send(failed(error))
        return
    connection.send(None)
    row = Row(lost=False)
    while not row["lost"]:
        try:
            measure, options = connection.recv()
        except EOFError:
            return
        row = {"lost": False}
        with warnings.catch_warnings(record=True) as told:
            try:
                row |= {"outcome": "measured", "figures": getattr(measures, measure)(**options)}
            except AbsentError as reason:
                row |= {"outcome": "skipped", "reason": str(reason)}
            except Exception as error:  # whatever a device, a kernel or a compiler raises; the others go on
                row |= failed(error)
        if row["outcome"] == "failed":
            row["lost"] = not measures.recover()
        if own := [str(one.message) for one in told if one.category.__name__ == "SpecframeWarning"]:
            row["warnings"] = [*dict.fromkeys(own)]
        connection.send(row)


def failed(error: Exception) -> Row:
    """Return an error as a row has it."""
    reason, trace = f"{type(error).__name__}: {error}".partition("\n")[0][:300], traceback.format_exc().splitlines()
    return {"outcome": "failed", "reason": reason, "trace": trace[-12:]}
