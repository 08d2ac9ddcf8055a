"""Decode requests through a pipeline, compare results with the reference decoder, and record fed tokens.

A request's stop ids and length are its own here, so that one batch can hold rows that end in different ways.
"""

from __future__ import annotations

import copy
import functools
import itertools
import weakref
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

import attrs
import numpy as np
import torch
from transformers import PreTrainedModel

from specframe.contracts.cache import Rounding, rounding
from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Request, Result
from specframe.contracts.roles import Observer
from specframe.engine.pool import Pool
from specframe.model.run import Run
from specframe.model.runner import ModelRunner
from specframe.models.loading import pick_device
from specframe.observe.watch import Watch
from specframe.pipeline import Pipeline
from specframe.plugins.compose import strategy
from specframe.plugins.recipe import Recipe
from specframe.plugins.registry import registry
from specframe.reference import reference_decode, reference_tokens
from specframe_testing import suite_device
from specframe_testing.constraint_fakes import OneByOne

Prompts = Sequence[Sequence[int]]

_placed: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()
"""Copies of models on the device of :func:`device`."""
_origin: weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[Any]] = weakref.WeakKeyDictionary()
"""The models on the CPU that those are copies of."""


def device() -> torch.device:
    """Return the device that suites run on, which ``pytest --specframe-device NAME`` names."""
    return pick_device(suite_device.NAME)


def placed(model: Any) -> Any:
    """Return a model on the device of the suites: a copy, the same one every time; what is no model of a CPU stays as it is."""
    if not isinstance(model, PreTrainedModel) or device().type == "cpu" or model.device.type != "cpu":
        return model
    if model not in _placed:
        twin: Any = copy.deepcopy(model)
        _placed[model] = twin.to(device())
        _origin[_placed[model]] = weakref.ref(model)
    return _placed[model]


def original(model: Any) -> Any:
    """Return the model on the CPU that a model is the copy of, or the model itself if it is none."""
    return _origin[model]() if model in _origin else model


def requests(
    prompts: Prompts, new: int | Sequence[int] = 8, stop: Set[int] | list[Set[int]] = frozenset()
) -> list[Request]:
    """Return one request per prompt; ``new`` and ``stop`` are for all, or a list with one entry for each."""
    lengths = [new] * len(prompts) if isinstance(new, int) else list(new)
    stops = list(stop) if isinstance(stop, list) else [stop] * len(prompts)
    return [
        Request(index, [*prompt], length, frozenset(ids))
        for index, (prompt, length, ids) in enumerate(zip(prompts, lengths, stops, strict=True))
    ]


def random_prompts(lengths: Iterable[int], vocabulary: int, seed: int = 0) -> list[list[int]]:
    """Return one prompt of random ids per length."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocabulary, (length,), generator=generator).tolist() for length in lengths]


def pipeline(target: PreTrainedModel, draft: Any = None, **options: Any) -> Pipeline:
    """Return a pipeline on loaded models.

    Args:
        target: the target; models of the CPU are used as copies on the device of :func:`device`.
        draft: a draft model, a drafter, or None for plain decoding.
        options: those of :class:`specframe.Pipeline`; the target's generation config is left aside. With ``drafter=`` the draft
            model goes to that drafter.
    """
    target, draft = placed(target), placed(draft)
    model = draft if isinstance(draft, torch.nn.Module) else None
    pipe = Pipeline(target=target, **{"drafter": draft, "generation_config": None, **options})
    if pipe.parts.draft is None:
        pipe.parts.draft = model  # type: ignore[assignment]
    return pipe


def decode(pipe: Pipeline, asked: Sequence[Request]) -> list[Result]:
    """Decode requests and return their results, by index."""
    return sorted(pipe.decode(asked), key=lambda result: (result.index, result.sample))


class Continuation:
    """The reference decoder's tokens after a prompt; each is computed when it is asked for the first time, and kept."""

    def __init__(self, model: PreTrainedModel, prompt: Sequence[int], rounded: Rounding | None) -> None:
        self._again = functools.partial(reference_tokens, model, [*prompt], rounded=rounded)
        self._tokens, self._more = list[int](), self._again()

    def first(self, count: int) -> list[int]:
        """Return the first ``count`` tokens, fewer where the model's context ends."""
        try:
            self._tokens += itertools.islice(self._more, max(0, count - len(self._tokens)))
        except BaseException:  # a generator that an error has left would report that the context has ended
            self._tokens, self._more = [], self._again()
            raise
        return self._tokens[:count]

    def __iter__(self) -> Iterator[int]:
        for place in itertools.count():
            if len(known := self.first(place + 1)) == place:
                return
            yield known[place]


@functools.lru_cache(maxsize=4096)
def _continuation(model: PreTrainedModel, prompt: tuple[int, ...], rounded: Rounding | None) -> Continuation:
    return Continuation(model, prompt, rounded)


def continuation(
    model: PreTrainedModel, prompt: Sequence[int], count: int, rounded: Rounding | None = None
) -> list[int]:
    """Return the reference decoder's ``count`` tokens after a prompt, fewer where the model's context ends."""
    return _continuation(original(model), tuple(prompt), rounded).first(count)


def truth(model: PreTrainedModel, asked: Sequence[Request], beyond: int = 8) -> list[list[int]]:
    """Return the continuation of every request, by index, and ``beyond`` its end; it is the script of a scripted drafter."""
    found: list[list[int]] = [[] for _ in range(1 + max(request.index for request in asked))]
    for request in asked:
        found[request.index] = continuation(model, request.prompt_ids, request.max_new_tokens + beyond)
    return found


def expected(model: PreTrainedModel, request: Request, rounded: Rounding | None = None) -> tuple[list[int], str]:
    """Return the tokens and the finish reason that the reference decoder gives a request, asking after each token.

    ``rounded`` is what becomes of keys and values, if that is something.
    """
    known = _continuation(original(model), tuple(request.prompt_ids), rounded)
    free = request.constraint is None
    more = itertools.islice(known, request.max_new_tokens) if free else constrained(model, request)
    tokens = list[int]()
    for token in more:
        tokens.append(token)
        if token in request.stop_token_ids:
            return tokens, "eos"
        ids = np.array([*request.prompt_ids, *tokens])
        if any(check.first(ids, len(request.prompt_ids), 1) == 0 for check in request.stop_checks):
            return tokens, "stop"
    return tokens, "length"


def constrained(model: PreTrainedModel, request: Request) -> list[int]:
    """Return the reference decoder's tokens for a request with a constraint, up to the first of its stop ids."""
    constraint, own = strategy(registry(), "constraint", request.constraint), original(model)
    processor = OneByOne(constraint, request, own.config.get_text_config().vocab_size)
    return reference_decode(own, request.prompt_ids, request.max_new_tokens, request.stop_token_ids, [processor])


def assert_exact(
    model: PreTrainedModel, asked: Sequence[Request], results: Sequence[Result], rounded: Rounding | None = None
) -> None:
    """Assert that results equal those of the reference decoder, token for token, in the order of the requests."""
    assert [result.index for result in results] == [request.index for request in asked]
    for request, result in zip(asked, results, strict=True):
        tokens, reason = expected(model, request, rounded)
        assert result.token_ids == tokens, difference(model, request, result.token_ids, tokens)
        assert result.finish_reason == reason, (
            f"request {request.index} ended with {result.finish_reason}, not {reason}"
        )


def difference(model: PreTrainedModel, request: Request, got: list[int], want: list[int]) -> str:
    """Say where two continuations part, and how far apart the target's two best logits are there."""
    place = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want)))
    gap = logit_gap(model, [*request.prompt_ids, *want[:place]])
    return (
        f"request {request.index} parts from the reference at token {place} (gap {gap:.2g}): got {got}, expected {want}"
    )


@torch.inference_mode()
def logit_gap(model: PreTrainedModel, ids: list[int]) -> float:
    """Return the difference of the target's two best logits after some tokens: near 0 is a tie."""
    ids_1T = torch.tensor([ids], device=model.device)
    mask = torch.ones_like(ids_1T) if model.config.model_type != "specframe-fake" else None
    best, second = model(ids_1T, attention_mask=mask).logits[0, -1].topk(2).values.tolist()
    return best - second


def check(pipe: Pipeline, asked: Sequence[Request]) -> list[Result]:
    """Decode requests, assert that they are exact, and return the results; the reference rounds keys as the KV backend does."""
    results = decode(pipe, asked)
    assert_exact(pipe.target_model, asked, results, rounding(pipe.composition.kv))
    return results


@attrs.frozen
class HarnessRound:
    """Forward passes of one round, each as (rows, tokens per row)."""

    report: RoundReport
    target: list[tuple[int, int]]
    draft: list[tuple[int, int]]

    @property
    def rows(self) -> int:
        """Rows of the round."""
        return len(self.report.sequences)


class Feeds(Observer):
    """Records what each round fed to the target and to the draft model."""

    def __init__(self) -> None:
        self.rounds: list[HarnessRound] = []
        self._fed: dict[str, list[tuple[int, int]]] = {"target": [], "draft": []}

    def forward(self, model: str, rows: int, tokens: int) -> None:
        """Note a forward pass."""
        self._fed[model].append((rows, tokens))

    def round(self, report: RoundReport) -> None:
        """Close the round."""
        self.rounds.append(HarnessRound(report, self._fed["target"], self._fed["draft"]))
        self._fed = {"target": [], "draft": []}

    @property
    def decoding(self) -> list[HarnessRound]:
        """The rounds that did not read prompts; AssertionError where there is none, since whatever is said of all would hold."""
        found = [round for round in self.rounds if not round.report.prefill]
        assert found, "no round that decodes was seen"
        return found

    @property
    def reading(self) -> list[HarnessRound]:
        """The rounds that read prompts; AssertionError where there is none."""
        found = [round for round in self.rounds if round.report.prefill]
        assert found, "no round that reads prompts was seen"
        return found


def open_run(
    target: PreTrainedModel,
    rows: int,
    capacity: int,
    *,
    align: Any = "auto",
    accept: Any = "auto",
    kv: Any = None,
    draft: Any = None,
) -> Run:
    """Return a run, as strategies are handed it, for tests that call a strategy directly."""
    recipe = Recipe(align=align, accept=accept).named(registry())
    alignment = strategy(registry(), "alignment", recipe.align)
    backend = strategy(registry(), "KV backend", kv or alignment.kv)
    run = Run(
        runner=ModelRunner(placed(target), "target"),
        alignment=alignment,
        rule=strategy(registry(), "acceptance rule", recipe.rule(greedy=True)),
        kv=backend,
        rows=rows,
        capacity=capacity,
        watch=Watch(),
        draft_model=placed(draft),
    )
    alignment.start(run)
    return run


def open_pool(asked: Sequence[Request], rows: int | None = None, beyond: int = 16, context: int = 2**20) -> Pool:
    """Return a pool of requests with ``rows`` rows, by default one for each request."""
    capacity = beyond + max(len(request.prompt_ids) + request.max_new_tokens for request in asked)
    return Pool(asked, rows or len(asked), capacity, context, device())
