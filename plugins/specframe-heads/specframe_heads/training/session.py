"""One training from prompts to a measured head: ``specframe heads train``."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import attrs
import torch
from rich.progress import Progress
from specframe_std.prompts.files import from_file

from specframe import Pipeline
from specframe.contracts.requests import Result
from specframe.errors import OptionError, sentence
from specframe.models import pairs
from specframe_heads.target import Target
from specframe_heads.training.continuations import ContinuationText, texts
from specframe_heads.training.head_kinds import learner_class, require
from specframe_heads.training.learner import Learner, frequent
from specframe_heads.training.training_loop import CHECKPOINT, TrainingPlan, begin, train

TRAINING = "training"
"""The folder of a training, inside the head's."""
FIGURES = "figures.json"
"""The file of the figures, in the folder of the head's."""
HELD_OUT = 20
"""One text in this many is held out, where no others are given."""


@attrs.frozen
class Options:
    """The options of the command."""

    kind: str
    target: str
    out: str
    continuations: str | None = None
    steps: int = 2000
    step_tokens: int = 4096
    places: int = 4
    vocabulary: int | None = None
    layers: int | None = None
    init: str | None = None
    rate: float = 1.5e-3
    bf16: bool = False
    max_prompt_tokens: int = 1024
    max_new_tokens: int = 128
    batch_size: int = 32
    seed: int = 0
    device: str = "auto"


@attrs.frozen
class Figures:
    """The figures of a trained head, decoded as a chain on texts that it was not trained on."""

    folder: Path
    parameters: int
    texts: int
    length: float
    """Mean acceptance length, the bonus token included."""
    agreement: list[float]
    """The share of drafts accepted up to each place."""


class Session:
    """A training; each stage goes on where it was cut off.

    Args:
        options: those of the command.
        progress: where it is shown; the caller starts and stops it.
    """

    def __init__(self, options: Options, progress: Progress) -> None:
        asked = {"ids": options.vocabulary, "layers": options.layers}
        require(options.kind, [name for name, value in asked.items() if value is not None])
        if options.init is not None:
            require_trained(options)
        self._options, self._progress = options, progress
        self._out = Path(options.out)
        self._work = self._out / TRAINING

    def run(self, data: str, held_out: str | None) -> Figures:
        """Train a head on prompts of a file, and return its figures on those of another, or on some that are held out."""
        files = {name: file for name, file in (("data", data), ("held-out", held_out)) if file is not None}
        prompts = {name: given(f"--{name}", file) for name, file in files.items()}
        if len(prompts) == 1 and len(prompts["data"]) < 2:
            raise OptionError(f"--data: expected at least two prompts in {data}, of which one is held out, got one")
        self._claim()
        # in float32, which small updates need; the same weights decode in any precision
        pipe = Pipeline(
            target=self._options.target,
            drafter=pairs.paired_drafter(self._options.target),
            batch_size=self._options.batch_size,
            device=self._options.device,
            dtype="float32",
            generation_config=None,
        )
        model = pipe.target_model.requires_grad_(False)
        written = {name: self._written(pipe, name, some) for name, some in prompts.items()}
        pipe.close()
        others = written.get("held-out", written["data"][::HELD_OUT])
        taught = written["data"] if "held-out" in written else [one for one in written["data"] if one not in others]
        head = self._trained(Target(model), taught)
        head.save(self._out)
        figures = self._figures(model, head, others)
        (self._out / FIGURES).write_text(json.dumps(self._told(figures), indent=2) + "\n", encoding="utf-8")
        return figures

    def _told(self, figures: Figures) -> dict[str, Any]:
        """Return figures as their file has them."""
        return {
            "kind": self._options.kind,
            "steps": self._options.steps,
            "parameters": figures.parameters,
            "texts": figures.texts,
            "mean_acceptance_length": round(figures.length, 4),
            "accepted_at_each_place": [round(one, 4) for one in figures.agreement],
        }

    def _claim(self) -> None:
        """Refuse a folder with a training of other options."""
        note, elsewhere = self._work / "options.json", dict.fromkeys(("out", "continuations", "device"))
        mine = attrs.asdict(self._options) | elsewhere
        self._work.mkdir(parents=True, exist_ok=True)
        if note.exists() and (theirs := json.loads(note.read_text())) != mine:
            differing = sorted(name for name in mine if theirs.get(name) != mine[name])
            raise OptionError(
                f"--out: {self._out} holds a training with another {', '.join(differing)}: name another folder, or give the "
                "options of that one"
            )
        note.write_text(json.dumps(mine))

    def _written(self, pipe: Pipeline, name: str, given: list[Any]) -> list[ContinuationText]:
        """Return prompts with the target's continuations."""
        limit, folder = self._options.max_prompt_tokens, Path(self._options.continuations or self._work) / name
        prompts = [pipe.encode(one)[:limit] for one in given]
        bar = self._progress.add_task(f"continuations, {name}", total=len(prompts), note="")
        return texts(
            folder, pipe, prompts, self._options.max_new_tokens, lambda done: self._progress.update(bar, completed=done)
        )

    def _trained(self, target: Target, written: list[ContinuationText]) -> Learner:
        options = self._options
        ids = frequent(written, options.vocabulary, target.vocabulary) if options.vocabulary else None
        some = {name: one for name, one in (("ids", ids), ("layers", options.layers)) if one is not None}
        torch.manual_seed(options.seed)
        head = learner_class(options.kind)(target=target, places=options.places, **some).to(target.device)
        if options.init is not None:
            begin_with(head, options.init)
        bar = self._progress.add_task("steps", total=options.steps, note="")

        def told(step: int, loss: float) -> None:
            self._progress.update(bar, completed=step, note=f"loss {loss:.3f}")

        plan = TrainingPlan(options.steps, options.step_tokens, options.rate, options.seed, options.bf16)
        train(head, written, plan, self._work, told)
        return head

    def _figures(self, model: Any, head: Learner, others: list[ContinuationText]) -> Figures:
        """Decode held-out prompts with the written head."""
        options, chain = self._options, ",tree=chain" if self._options.kind == "medusa" else ""  # the others' default
        pipe = Pipeline(
            target=model,
            drafter=f"{self._out}{chain}",
            draft_length=options.places,
            batch_size=options.batch_size,
            generation_config=None,
        )
        results = list(pipe.generate([one.ids[: one.prompt] for one in others], options.max_new_tokens))
        rounds = sum(one.metrics.num_spec_steps for one in results)
        by_place = [
            sum(map(longer, results, [place] * len(results))) / max(1, rounds) for place in range(options.places)
        ]
        parameters = sum(weight.numel() for weight in head.parameters() if weight.requires_grad)
        return Figures(self._out, parameters, len(others), pipe.report.mean_acceptance_length, by_place)


def require_trained(options: Options) -> None:
    """Raise :class:`OptionError` where there is no training to begin with, or one whose tokens may be others."""
    if not (Path(str(options.init)) / TRAINING / CHECKPOINT).is_file():
        asked = f"a folder that `specframe heads train` wrote, with {TRAINING}/{CHECKPOINT} in it"
        raise OptionError(f"--init: expected {asked}, got {options.init}")
    if options.vocabulary is not None:
        raise OptionError(
            "--vocabulary: expected none with --init, whose head has tokens of its own, got " + str(options.vocabulary)
        )


def begin_with(head: Learner, folder: str) -> None:
    """Have a head begin with the weights of one that was trained into a folder; raise :class:`OptionError` where it cannot."""
    try:
        begin(head, Path(folder) / TRAINING)
    except ValueError as error:
        raise OptionError(f"--init: {folder}: {error}") from error
    except (OSError, EOFError, KeyError, RuntimeError, pickle.UnpicklingError) as error:
        raise OptionError(f"--init: {folder}: {CHECKPOINT} cannot be read: {sentence(error)}") from error


def longer(result: Result, place: int) -> int:
    """Return the number of rounds in which more than ``place`` draft tokens were accepted."""
    return sum(rounds for accepted, rounds in result.metrics.acceptance_histogram.items() if accepted > place)


def given(option: str, file: str) -> list[Any]:
    """Return the prompts of an option's file; raise :class:`OptionError` with the option's name for one that cannot be read."""
    try:
        asked = from_file(file)
    except OptionError as fault:
        raise OptionError(str(fault).replace("--prompts:", f"{option}:", 1)) from fault
    if wrong := next((prompt.fault for prompt in asked if prompt.fault), None):
        raise OptionError(f"{option}: {file}: {wrong}")
    return [prompt.given for prompt in asked]
