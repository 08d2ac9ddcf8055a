"""Display of ``specframe run``: progress, completions, figures."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from specframe.cli.tables import per_second, show_table
from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Chunk
from specframe.contracts.roles import Observer
from specframe.text.prompts.prompt import Prompt
from specframe_std.run_command.results import Record

if TYPE_CHECKING:
    from specframe_std.run_command.run_report import DisplaySettings


def progress_bar(console: Console, hidden: bool) -> Progress:
    """Return a bar: how many of how many, figures, the time that has passed, and an estimate of the time that is left.

    Args:
        console: where it is drawn; nothing is where that is no terminal.
        hidden: whether nothing is drawn anyway.
    """
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        disable=hidden or not console.is_terminal,
    )


class Display(Observer):
    """Shows completions on standard output as they finish, and a progress bar on standard error if that is a terminal.

    The display is an observer: the bar moves with every round.
    """

    def __init__(self, total: int, done: int, manner: DisplaySettings) -> None:
        self._out, self._err = Console(stderr=manner.err, highlight=False), Console(stderr=True, highlight=False)
        self._manner = manner
        self._bar = progress_bar(self._err, hidden=manner.stream or manner.quiet)
        if self._out.is_terminal and self._err.is_terminal:
            self._out = self._err  # the console that draws the bar prints both, so that they do not mix
        self._task = self._bar.add_task("loading models", total=total, completed=done, figures="")
        self._flow = Flow(self._out, manner.err) if manner.stream else None
        self._waiting: list[tuple[int, int, Record]] = []
        self._tokens = self._drafted = self._accepted = 0
        self._started = 0.0

    def __enter__(self) -> Self:
        """Start the bar."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Show what waits for its turn, and remove the bar."""
        self._turn(math.inf)
        self._bar.stop()

    def decoding(self) -> None:
        """Show that the models are loaded, and start the clock."""
        self._started = time.perf_counter()
        self._bar.update(self._task, description="decoding")

    def round(self, report: RoundReport) -> None:
        """Move the bar's figures."""
        self._tokens += int(report.gained.sum())
        self._drafted += int(report.drafted.sum())
        self._accepted += int(report.accepted.sum())
        speed = self._tokens / (time.perf_counter() - self._started)
        rate = f", acceptance {self._accepted / self._drafted:.2f}" if self._drafted else ""
        self._bar.update(self._task, figures=f"{per_second(speed)} tokens/s{rate}")

    def piece(self, chunk: Chunk, prompt: Prompt) -> None:
        """Show new text of a continuation, when its turn has come."""
        if self._flow and not (chunk.result and chunk.result.error):
            self._flow.put(chunk, prompt.text)

    def completion(self, kept: Record, first: float = math.inf) -> None:
        """Show one finished continuation: at once, or on a terminal when its turn has come, so that they are in the order asked.

        Args:
            kept: its record.
            first: the first prompt that has not finished; infinite where there is none.
        """
        self._bar.advance(self._task)
        heapq.heappush(self._waiting, (kept["index"], kept.get("sample", 0), kept))
        self._turn(first if self._out.is_terminal else math.inf)

    def _turn(self, first: float) -> None:
        while self._waiting and self._waiting[0][0] < first:
            self._completed(heapq.heappop(self._waiting)[2])

    def _completed(self, kept: Record) -> None:
        mark = f"[{kept['index']}.{kept['sample']}]" if "sample" in kept else f"[{kept['index']}]"
        if kept["finish_reason"] == "error":
            self._fault(f"{mark} error: {kept['error']}")
            return
        if self._flow or not self._manner.completions:
            return
        heading = f"{mark} {kept['finish_reason']}, {len(kept['token_ids'])} tokens"
        if self._manner.verbose:
            heading += f", acceptance length {kept['metrics']['mean_acceptance_length']:.2f}"
        if not self._out.is_terminal:
            click.echo(f"{heading}\n{kept['prompt']}{kept['text']}\n", err=self._manner.err)
            return
        text = Text.assemble((mark, "bold cyan"), (heading.removeprefix(mark) + "\n", "dim"))
        text.append(visible(kept["prompt"]), "dim")
        text.append(visible(kept["text"]) + "\n")
        self._out.print(text, soft_wrap=True)

    def _fault(self, sentence: str) -> None:
        if self._err.is_terminal:
            self._err.print(Text(sentence), soft_wrap=True)
        else:
            click.echo(sentence, err=True)


class Flow:
    """Shows streamed text, one continuation after the other. Text of later continuations is kept until their turn."""

    def __init__(self, out: Console, err: bool = False) -> None:
        self._out, self._to_err = out, err
        self._texts: dict[tuple[int, int], str] = {}
        self._ends: dict[tuple[int, int], str] = {}

    def put(self, chunk: Chunk, prompt: str) -> None:
        """Take new text of one continuation, and show all text whose turn has come."""
        key = chunk.index, chunk.sample
        mark = f"[{chunk.index}.{chunk.sample}]" if chunk.sample else f"[{chunk.index}]"
        self._texts[key] = self._texts.get(key, f"{mark}\n{prompt}") + chunk.text
        if chunk.result:
            self._ends[key] = f"\n{chunk.result.finish_reason}, {len(chunk.result.token_ids)} tokens\n\n"
        while self._texts:
            first = next(iter(self._texts))
            self._show(self._texts[first])
            self._texts[first] = ""
            if first not in self._ends:
                return
            self._show(self._ends.pop(first))
            del self._texts[first]

    def _show(self, text: str) -> None:
        click.echo(visible(text) if self._out.is_terminal else text, nl=False, err=self._to_err)


def visible(text: str) -> str:
    """Return text with visible escape characters, which a terminal shows and does not execute."""
    return text.replace("\x1b", "\N{SYMBOL FOR ESCAPE}")


def show_figures(figures: Mapping[str, Any], err: bool = False) -> None:
    """Print a run's figures, and its seconds per stage."""
    stage_figures = ("stage_seconds", "stage_shares")
    rows = [(name, figure(value)) for name, value in figures.items() if name not in stage_figures]
    show_table(("figure", "value"), rows, numbers=True, err=err)
    click.echo(err=err)
    shares = figures["stage_shares"]
    stages = sorted(figures["stage_seconds"].items(), key=lambda item: -item[1])
    times = [(stage, f"{seconds:.3f}", f"{shares[stage]:.3f}") for stage, seconds in stages]
    show_table(("stage", "seconds", "share"), times, numbers=True, err=err)
    click.echo(err=err)


def show_conditions(named: str, conditions: dict[str, object], err: bool = False) -> None:
    """Print the conditions of a run, one per line."""
    rows = [(name.replace("_", " "), "-" if value is None else str(value)) for name, value in conditions.items()]
    show_table((named, "value"), rows, err=err)
    click.echo(err=err)


def figure(value: float | dict[int, int] | list[float] | None) -> str:
    """Return a figure as text: ``accepted:rounds`` pairs for a histogram, - for one that the device does not count."""
    if isinstance(value, dict):
        return " ".join(f"{accepted}:{rounds}" for accepted, rounds in value.items()) or "-"
    if value is None or isinstance(value, list):
        return " ".join(map(figure, value or ())) or "-"
    return str(value) if isinstance(value, int) else f"{value:.3f}"
