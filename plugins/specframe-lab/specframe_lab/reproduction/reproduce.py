"""The measurements of Batch Speculative Decoding Done Right (arXiv 2510.22876), made with a pair of one's own.

A reproduction has parts, each a question with its own settings: ``match`` (is the output the target's own?), ``speed``
(how fast, and where does the time go?), ``uniform`` and ``random`` (how often does EXSPEC's scheduler find rows of equal
length, when prompts have one length and when they have many?), ``bursty`` (how long does a sequence take when prompts
arrive in bursts, in passes of the target?) and, where prompts are to arrive over time, ``arrivals`` (the same in seconds).
All lines are kept in one folder, as with a comparison.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from specframe_testing.instrumentation.ties import Scales

from specframe.engine.encoding import Prompt
from specframe.pipeline import Pipeline
from specframe.text.prompts.builtin import BUILT_IN
from specframe_lab.comparison import compare as comparing
from specframe_lab.comparison.compare import ComparisonSettings, ComparisonStep, Progress
from specframe_lab.comparison.comparison_results import Comparison, Folder, Line
from specframe_lab.comparison.schemes import PLAIN, PLAIN_NAME, Case, explicit
from specframe_lab.comparison.transformers_generate import generated
from specframe_lab.comparison.transformers_generate import line as line_of
from specframe_lab.grid import Cell
from specframe_lab.grid_models import LoadedModels, models_of
from specframe_lab.verify import Reference, encode

ASSISTED = "assisted"
"""Assisted generation by transformers itself, which takes one sequence at a time."""
WINDOW, PATIENCE = 48, 16
"""EXSPEC's window as published, and the rounds a sequence may be passed over here."""
ENDLESS = 10**9
"""Patience without end: what is published has no bound on waiting."""

SPECULATING: dict[str, Cell] = {
    "ragged": {"align": "ragged"},
    "eqspec": {"align": "eqspec"},
    "exspec": {"align": "exspec", "schedule": f"same-length,window={WINDOW},patience={PATIENCE}"},
}
UNBOUNDED: Cell = {"align": "exspec", "schedule": f"same-length,window={WINDOW},patience={ENDLESS}"}
"""EXSPEC as published."""
FLAWED: dict[str, Cell] = {"padding": {"align": "padding"}, "masking": {"align": "masking"}}
SCHEMES: dict[str, dict[str, Cell]] = {
    "match": {
        PLAIN_NAME: PLAIN,
        ASSISTED: {"decoder": "transformers"},
        **SPECULATING,
        "rollback": {"align": "rollback"},
        **FLAWED,
    },
    "speed": {PLAIN_NAME: PLAIN, **SPECULATING},
    "uniform": {
        "bounded": SPECULATING["exspec"],
        "unbounded": UNBOUNDED,
    },
    "bursty": {
        "ragged": SPECULATING["ragged"],
        "eqspec, continuous": {"align": "eqspec", "schedule": "continuous"},
        "exspec": SPECULATING["exspec"],
        "exspec, unbounded": UNBOUNDED,
    },
    "arrivals": SPECULATING,
}
SCHEMES["random"] = SCHEMES["uniform"]
PARTS = ("match", "speed", "uniform", "random", "bursty", "arrivals")
"""The parts, in the order in which they are run, and the schemes of each."""

OWN = ("part", "decoder")
"""Entries of a cell that are no options of a pipeline."""


@attrs.frozen
class Shaped(ComparisonSettings):
    """Settings whose prompts are cut to one length, or at random; the same prompts either way."""

    uniform: bool = True

    def prompts_for(self, pipe: Pipeline) -> Sequence[Prompt]:
        """Return the longer half of the prompts, cut to the median length or to between 1 token and that."""
        ids = encode(pipe, self.prompts, self.max_prompt_tokens)
        length = int(np.median([len(one) for one in ids]))
        long = [one for one in ids if len(one) >= length]
        random = np.random.default_rng(0).integers(1, length + 1, len(long)).tolist()
        return [one[: length if self.uniform else cut] for one, cut in zip(long, random, strict=True)]


@attrs.frozen
class PaperPart:
    """Cells that share their settings."""

    name: str
    cases: list[Case]
    settings: ComparisonSettings


@attrs.frozen
class Reproduction:
    """Results of a reproduction so far: each part is a comparison."""

    about: dict[str, Any]
    parts: dict[str, Comparison]
    built_in: bool = False
    """Whether all prompts are specframe's own starts of code, in place of those published."""


def plan(
    pair: Cell, prompts: Sequence[Prompt], sizes: Mapping[str, Collection[int]], settings: Mapping[str, dict[str, Any]]
) -> list[PaperPart]:
    """Return the parts of a reproduction.

    Args:
        pair: target, drafter, device, dtype and draft length.
        prompts: texts, token ids or messages.
        sizes: the batch sizes of each part that is wanted; 1 is added to those of ``match``, as its reference, and left
            out of ``uniform`` and ``random``, where there is nothing to group.
        settings: what differs from the defaults of :class:`specframe_lab.comparison.compare.ComparisonSettings`, by part.
    """
    parts = []
    for name in (name for name in PARTS if name in sizes):
        kind = Shaped if name in ("uniform", "random") else ComparisonSettings
        given = {"prompts": prompts, **settings[name]}
        wanted = set(sizes[name]) | {1} if name == "match" else set(sizes[name])
        wanted -= {1} if kind is Shaped else set()
        parts.append(PaperPart(name, cases(name, pair, sorted(wanted)), kind(**given)))
    return parts


def cases(part: str, pair: Cell, sizes: Sequence[int]) -> list[Case]:
    """Return a part's cases, plain decoding first; transformers' own at batch size 1 only, and with a draft model only."""
    _, _, draft_model = models_of(pair)
    found = []
    for scheme, options in SCHEMES[part].items():
        for size in sizes:
            cell = explicit({**pair, **options, "batch_size": size}) | {"part": part}
            if scheme != ASSISTED or (size == 1 and cell["draft_length"].isdigit() and draft_model is not None):
                found.append(Case(scheme, cell, plain=scheme == PLAIN_NAME, timed=part != "match"))
    return found


def reproduce(
    parts: list[PaperPart],
    folder: str | os.PathLike[str],
    command: str = "",
    only: Collection[str] = PARTS,
    progress: Progress = lambda step, line: None,
) -> Reproduction:
    """Run what is missing of the parts named in ``only``, and return all that the folder has then.

    ``progress`` is called before and after every run.
    """
    loaded = LoadedModels()
    filled = [part for part in parts if part.cases]  # grouping has none where the only batch size is 1
    planned = [bare(part.cases[0]) for part in filled]
    shared = [part.settings for part in filled]
    kept = Folder(folder, about(parts, command), lambda: comparing.check_prompts(planned, shared, loaded))
    for part in parts:
        if part.name in only:
            run_part(part, kept, loaded, progress)
    built_in = all(set(part.settings.prompts) <= set(BUILT_IN) for part in parts)
    return Reproduction(kept.about, {part.name: kept.comparison(part.cases) for part in parts}, built_in)


def run_part(part: PaperPart, kept: Folder, loaded: LoadedModels, progress: Progress) -> None:
    """Run what is missing of a part, its models loaded first."""
    there = kept.lines
    todo = [s for s in comparing.steps(part.cases, part.settings.repeats) if s.repeat not in there.get(s.case.key, {})]
    if todo:
        loaded.pipeline(bare(todo[0].case).cell)
    comparing.take(todo, lambda step: run(step, part, loaded, kept), kept, progress)


def about(parts: list[PaperPart], command: str) -> dict[str, Any]:
    """Return everything that distinguishes reproductions, and where it was run."""
    settings = {f"{part.name}: {key}": value for part in parts for key, value in part.settings.about().items()}
    return comparing.beginning(command, settings, [case for part in parts for case in part.cases]) | {"refused": []}


def bare(case: Case) -> Case:
    """Return a case with nothing but what a pipeline takes."""
    return attrs.evolve(case, cell={option: value for option, value in case.cell.items() if option not in OWN})


def run(step: ComparisonStep, part: PaperPart, loaded: LoadedModels, kept: Folder) -> Line:
    """Run one cell once and return its line; under ``match`` with the kinds of its divergences from batch size 1."""
    own = attrs.evolve(step, case=bare(step.case))
    if "decoder" in step.case.cell:
        line = comparing.attempt(lambda: assisted(own.case.cell, part.settings, loaded))
    else:
        line = comparing.run(own, part.settings, loaded)
    if part.name == "match" and line.get("lossless"):
        line |= comparing.attempt(lambda: kinds(own.case.cell, line["token_ids"], part, loaded, kept))
    return line


def kinds(cell: Cell, ids: list[list[int]], part: PaperPart, loaded: LoadedModels, kept: Folder) -> Line:
    """Return how many divergences from plain decoding at batch size 1 are ties, and how many are bugs."""
    comparison = kept.comparison(part.cases)
    plain = comparison.plain(part.cases[0], 1)
    reference = comparison.runs(plain)[0]["token_ids"] if plain and comparison.runs(plain) else ids
    prompts = encode(loaded.pipeline(cell), part.settings.prompts, part.settings.max_prompt_tokens)
    scales = Scales(loaded.target(cell))
    reference_decoder = Reference(scales, prompts, reference, part.settings.max_new_tokens, loaded)
    agreement = reference_decoder.agreement(ids, reference)
    return {"ties": agreement.ties, "bugs": agreement.bugs}


def assisted(cell: Cell, settings: ComparisonSettings, loaded: LoadedModels) -> Line:
    """Decode all prompts, one by one, with transformers' own assisted generation at the cell's draft length.

    The ids are cut at the first stop.
    """
    pipe = loaded.pipeline(cell)
    draft: Any = pipe.draft_model
    draft.generation_config.update(
        num_assistant_tokens=int(cell["draft_length"]),
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
    )
    prompts = settings.prompts_for(pipe)
    ids, ends = generated(pipe, prompts, 1, settings.max_new_tokens, assistant_model=draft)
    return line_of(ids, ends) | {"tokens_digest": comparing.digest(ids), "token_ids": ids}


def unfilled(parts: Mapping[str, tuple[int, Collection[int]]]) -> list[str]:
    """Return a sentence for all parts with the same number of prompts and the same batch sizes that it does not fill."""
    found: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for part, (prompts, sizes) in parts.items():
        if larger := tuple(sorted({size for size in sizes if size > prompts})):
            found.setdefault((prompts, larger), []).append(part)
    told = []
    for (prompts, larger), names in found.items():
        several = "s" * (prompts != 1)
        why = f"with {prompts} prompt{several} no batch has more than {prompts} row{several}"
        what = (
            f"batch sizes {', '.join(map(str, larger))} measure" if larger[1:] else f"batch size {larger[0]} measures"
        )
        told.append(f"{', '.join(names)}: {why}, so {what} a batch of {prompts}")
    return told


def spread_over(prompts: Sequence[Prompt], count: int | None) -> Sequence[Prompt]:
    """Return ``count`` prompts, evenly spread over all of them; all where there are no more."""
    if count is None or count >= len(prompts):
        return prompts
    return [prompts[place * len(prompts) // count] for place in range(count)]
