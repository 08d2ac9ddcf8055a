"""The executor ``ray``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from specframe_std.output_file import Output
from specframe_std.output_folders import claim_folder

from specframe.contracts.engine import Value
from specframe.errors import OptionError, SpecframeError, literal
from specframe.value_checks import number, whole

if TYPE_CHECKING:
    from specframe.observe.counts import RunReport
    from specframe.plugins.recipe import Recipe
    from specframe.text.sampling import Sampling
    from specframe_ray.job import ResultPlace, WorkerOptions
    from specframe_ray.ray_watch import Progress

FORMS = ("parquet", "jsonl")


class Ray:
    """Decodes files of prompts and data sets in actors of a Ray cluster, each with models of its own.

    Options:
        workers: number of actors.
        gpus: GPUs of each.
        cpus: CPUs of each, as Ray counts them.
        rows: rows of files that are decoded, written and noted as done together.
        form: "parquet" or "jsonl": the files of results.
    """

    offers = frozenset({"files", "datasets"})

    def __init__(
        self, workers: int = 1, gpus: float = 0, cpus: float = 1, rows: int = 64, form: str = FORMS[0]
    ) -> None:
        self.workers, self.rows = whole("workers", workers, 1), whole("rows", rows, 1)
        self.gpus, self.cpus = number("gpus", gpus, 0), number("cpus", cpus, 0)
        if form not in FORMS:
            raise OptionError(f"form: expected one of {', '.join(FORMS)}, got {form!r}")
        self.form = form

    @property
    def place(self) -> ResultPlace:
        """Where the actors run."""
        from specframe_ray.job import ResultPlace

        return ResultPlace(self.workers, self.gpus, self.cpus)

    def open(self, *_: Any) -> Any:
        """Refuse: nothing is decoded step by step."""
        raise OptionError(
            "executor ray: expected files of prompts, as `specframe run --prompts FILE --output FOLDER` has, or a data set for "
            "Pipeline.map, got prompts in Python"
        )

    def map(self, recipe: Recipe, dataset: Any, max_new_tokens: int, sampling: Sampling, chat: bool) -> Any:
        """Return a Ray data set with the columns of results after its own.

        A row is an entry as of a JSON line. Its random numbers follow from its values and the seed, since a data set has no order.

        Raises:
            OptionError: the data set is none of Ray's, or an option is no plain value.
        """
        from specframe_ray.job import WorkerOptions, map

        return map(dataset, WorkerOptions(plain(recipe), sampling, max_new_tokens, chat), self.place)

    def broadcast(self, value: Value) -> Value:
        """Return the value itself: every actor is alone with its rows."""
        return value

    def run_files(self, asked: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[int, str]:
        """Decode the files of a command and show what came of it; return how many rows failed, and the figures as JSON."""
        from specframe_ray.ray_command import run_files

        return run_files(self.decode, asked, settings)

    def decode(
        self,
        asked: WorkerOptions,
        prompts: str,
        output: str,
        settings: Mapping[str, Any],
        resume: bool,
        progress: Progress,
    ) -> tuple[int, int, RunReport]:
        """Decode files of prompts into a folder; return the number of rows, of those that failed, and the figures of this run."""
        from specframe_ray.job import run
        from specframe_ray.ray_hub import rows_of

        folder = Path(output)
        with claim_folder(output, SETTINGS, ()):
            new = claim(folder, {**settings, "form": self.form}, resume)
            try:
                given = rows_of(prompts, folder.absolute(), self.rows)
                return run(asked, given, output, self.place, self.form, progress)
            except SpecframeError:
                if new and not begun(folder):
                    (folder / SETTINGS).unlink()
                raise


def plain(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as arguments of an actor's own pipeline.

    Raises:
        OptionError: an option is an object, which does not go to other machines.
    """
    options = {name: value for name, value in attrs.asdict(recipe, recurse=False).items() if name != "executor"}
    for name, value in options.items():
        if not (value is None or value in ((), []) or isinstance(value, str | int)):
            raise OptionError(f"{name}: expected a plain value with executor ray, got {literal(value)}")
    return options


SETTINGS = "_settings.json"
"""The file, inside of the output, with the settings that all of its rows have."""
OWN = f".{SETTINGS}."
"""How the names begin of the lock, and of what is left of settings when a run was killed while it wrote them."""


def begun(folder: Path) -> bool:
    """Return whether a folder holds more than the settings, and files that go with them."""
    return any(one.name != SETTINGS and not one.name.startswith(OWN) for one in folder.iterdir())


def claim(folder: Path, settings: dict[str, Any], resume: bool) -> bool:
    """Take over the output folder, which is there; return whether it is a new one.

    Raises:
        OptionError: it has something in it, or results of other settings.
    """
    kept = folder / SETTINGS
    now = json.loads(json.dumps(settings, default=str))
    if kept.exists() or begun(folder):
        if not kept.exists():
            raise OptionError(
                f"--output: expected an empty folder, got {str(folder)!r} with something other than results"
            )
        if not resume:
            raise OptionError(f"--output: {str(folder)!r} holds results already: pass --resume to complete them")
        then = json.loads(kept.read_text(encoding="utf-8"))
        for name in sorted(now.keys() | then.keys()):
            if now.get(name) != then.get(name):
                option = name.replace("_", "-")
                raise OptionError(
                    f"--resume: {str(folder)!r} was made with {option} {then.get(name)}: expected {now.get(name)}, as asked now"
                )
        return False
    Output(str(kept)).replace(json.dumps(now, indent=1) + "\n")
    return True
