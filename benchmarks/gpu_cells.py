"""What the cells of ``gpu_fast.py`` measure, each a method of one class; models, pipelines and graphs stay from one to the next."""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import contextlib
import functools
import gc
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from attention import calls, filled, milliseconds
from bench import surroundings
from budgeted import AbsentError, Row
from contenders import Models, held_out_prompts, ours, schemes
from equivalence import one
from exactness import Judge
from graph_times import Graph, graphs, nodes, profiled, recorded
from grow import PAIRS, load_pair, shape
from hybrid import hybrid as random_hybrid
from measure import healthy
from random_heads import KINDS, save
from roofline import copy_bandwidth, read_bandwidth, weight_bytes
from rounds import Rounds, measured
from specframe_std.graphs import captured_rounds
from transformers import PreTrainedModel

from specframe import Pipeline
from specframe.devices import kinds
from specframe.model.decoder_layers import ints_and_sizes_left_open
from specframe.models.loading import pick_device, pick_dtype, stop_token_ids

SYNTHETIC = "synthetic,rate=0.8"
"""An acceptance rule under which rounds gain as much as with a trained drafter, whatever the drafts are."""
PAST_CACHE = 120_000_000
"""Bytes that one graph reads in turn: more than twice the 50 MB of an H100's L2 cache, so that nothing is found there."""
READS = 8
"""The fewest calls in one graph, so that its launch is a small share of its time."""
QUEUED = 5
"""Replays that are queued at once: only the first is waited for while the host launches it."""
WARM = 8
"""Rounds in which prompts are read, and forwards and whole rounds are captured."""
captured_rounds.ROUNDS = WARM - 3  # so that this is over before anything is timed
TRITON = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON", "coordinate_descent_tuning": True}
"""Options of Inductor: products by Triton alone, and those of one row as sums that are tuned step by step."""


class GpuCells:
    """The measurements.

    Args:
        pair: of :data:`grow.PAIRS`.
        device, dtype: of the models.
        new: new tokens of a run.
        small: whether few rounds are timed, and tensors need not exceed the caches.
    """

    def __init__(self, pair: str, device: str, dtype: str, new: int, small: bool) -> None:
        transformers.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        torch.manual_seed(0)
        self._pair, self._new, self._small, self._timed = pair, new, small, 4 if small else 20
        self._device = pick_device(device)
        self._on: dict[str, Any] = {"device": self._device, "dtype": pick_dtype(dtype, self._device)}
        self._pipes: dict[tuple[str, int, int, str], tuple[Pipeline, list[Graph]]] = {}
        self._folder = tempfile.TemporaryDirectory()
        self._head = functools.cache(lambda kind: save(kind, Path(self._folder.name) / kind, self._models.target, 5))

    def recover(self) -> bool:
        """Let go of pipelines after an error; return whether the device still computes."""
        self._pipes.clear()
        gc.collect()
        if found := healthy(self._device):
            kinds.of(self._device).free()
        return found

    def bandwidth(self) -> list[Row]:
        """Return gigabytes per second of reading alone, and of a copy, both directions together."""
        read, copy = read_bandwidth(self._device) / 1e9, copy_bandwidth(self._device) / 1e9
        return [{"read_gb_s": read, "copy_gb_s": copy, **surroundings(*self._on.values())}]

    def forwards(self, way: str, batch: int) -> list[Row]:
        """Replay the graphs that plain decoding and drafts of five tokens have recorded."""
        found = []
        for length, parts in ((0, ("plain",)), (5, ("verify", "draft step"))):
            with self._decoding(way, batch, length) as (_, made):
                for part in parts:
                    own = [
                        graph
                        for graph in made
                        if graph.rows == batch and min(graph.places, 2) == 1 + (part == "verify")
                    ]
                    if not own:
                        raise RuntimeError(f"{part}: expected a graph of its forward, found that none was recorded")
                    figures = self._replayed(part, max(own, key=lambda graph: graph.replays), batch)
                    found.append({"way": way, "batch": batch, "part": part, **figures})
        return found

    def _replayed(self, part: str, graph: Graph, batch: int) -> Row:
        model, replay = self._models.draft if part == "draft step" else self._models.target, graph.recording.replay
        spent = milliseconds(lambda: [replay(batch) for _ in range(QUEUED)]) / QUEUED
        found = profiled(lambda: replay(batch), self._device)
        row = {"width": graph.outputs[0].shape[1], "ms": spent, "weights_gb_s": weight_bytes(model) / 1e6 / spent}
        return {**row, "nodes": nodes(graph, self._device), **found, "gap_ms": beyond(spent, found)}

    def rounds(self, way: str, rounds: str, batch: int, length: int) -> list[Row]:
        """Time rounds of a pipeline that is warm, and profile further ones."""
        spent, gained = [], []
        with self._decoding(way, batch, length, rounds) as (decode, _):
            for _ in range(self._timed):
                started = time.perf_counter()
                gained.append(decode() / batch)
                spent.append(1e3 * (time.perf_counter() - started))
            found, usual = profiled(decode, self._device), statistics.median(spent)
        row = {
            "way": way,
            "rounds": rounds,
            "batch": batch,
            "K": length,
            "tokens": statistics.mean(gained),
            "ms": usual,
        }
        idle = beyond(usual, found)
        return [{**row, "most_ms": max(spent), **found, "idle_ms": idle, "idle_share": idle and idle / usual}]

    def runs(self, scheme: str, batch: int) -> list[Row]:
        """Decode long continuations after a short warm-up."""
        how: dict[str, Any] = {"accept": SYNTHETIC, "draft_length": "goodput" if scheme == "goodput" else 5}
        how["drafter"] = f"{scheme},checkpoint={self._head(scheme)}" if scheme in KINDS else self._models.draft
        watch, layers = Rounds(), "compiled" if compiles(self._device) else "eager"
        pipe = self._pipe(layers, batch, observers=[watch], **({"drafter": None} if scheme == "plain" else how))
        for new in (self._new // 4, self._new):
            (line,) = measured(pipe, watch, self._prompts(batch), new, 1)
        usual, (_, spent, _) = max(line["rounds"].items(), key=lambda item: item[1][0])
        told = {name: line[name] for name in ("tokens_per_second", "acceptance_rate")}
        return [{"way": layers, "batch": batch, "scheme": scheme, **told, "usual": usual, "round_ms": spent}]

    def hybrid(self, graphs: str, batch: int, length: int) -> list[Row]:
        """Time rounds of a pair most of whose layers keep a state, with and without captured graphs."""
        target, draft = self._hybrids
        spent = list[float]()
        drafting = {"drafter": draft, "draft_length": length, "accept": SYNTHETIC} if length else {"drafter": None}
        pipe = Pipeline(target, batch_size=batch, graphs=graphs, generation_config=None, **drafting)
        prompts = [[*range(3, 60)]] * batch
        with contextlib.closing(pipe.stream(prompts, 6 * (WARM + self._timed + 4))) as chunks:
            for number in range(WARM + self._timed):
                started = time.perf_counter()
                for _ in range(batch):
                    next(chunks)
                if number >= WARM:
                    spent.append(1e3 * (time.perf_counter() - started))
        weights = weight_bytes(target) + length * weight_bytes(draft)
        row = {"graphs": graphs, "batch": batch, "K": length, "ms": (usual := statistics.median(spent))}
        return [{**row, "most_ms": max(spent), "weights_gb_s": weights / 1e6 / usual}]

    @functools.cached_property
    def _hybrids(self) -> tuple[PreTrainedModel, PreTrainedModel]:
        """A target and a draft model in the shapes of Qwen3.5 with 4 and 0.8 billion weights, or small ones."""
        shapes = ((64, 4, 128, 2), (64, 4, 128, 2)) if self._small else ((2560, 32, 9216, 16), (1024, 24, 3584, 8))
        return tuple(random_hybrid(*one, seed).to(**self._on) for seed, one in enumerate(shapes))  # type: ignore[return-value]

    def attention(self, way: str, batch: int, fed: int, live: int) -> list[Row]:
        """Time one layer's attention in a graph of many, whose keys are too many for the L2 cache."""
        if way != "masked" and {"decode": "triton"}.get(way, way) not in kinds.of(self._device).kernels:
            raise AbsentError(f"{self._device.type} has no kernel for it")
        if way == "decode" and not find_spec("triton"):
            raise AbsentError("there is no Triton")
        config, slots = shape(PAIRS[self._pair][0]), -(-live // 64) * 64
        heads, size = config.num_key_value_heads, config.head_dim
        query = torch.randn(batch, config.num_attention_heads, fed, size, **self._on)
        token = 2 * batch * heads * size * query.itemsize
        states = torch.randn(self._copies(token * slots), 2, batch, slots, heads, size, **self._on).transpose(3, 4)
        placement = filled(torch.full((batch,), live, device=self._device), fed, slots)
        spent = self._in_graph([calls(way, query, key, value, placement)[1] for key, value in states])
        row = {"way": way, "batch": batch, "fed": fed, "live": live, "us": 1e3 * spent}
        return [{**row, "keys_gb_s": token * live / 1e6 / spent}]

    def products(self, weight: str, rows: tuple[int, ...], triton: bool) -> list[Row]:
        """Time products in graphs that read one copy of a weight, named by its outputs and inputs, after the other."""
        if triton and (self._device.type != "cuda" or not find_spec("triton")):
            raise AbsentError("there is no Triton, or no CUDA")
        outputs, inputs = (int(one) // (16 if self._small else 1) for one in weight.split()[-1].split("x"))
        size = outputs * inputs * self._on["dtype"].itemsize
        weights = torch.randn(self._copies(size), outputs, inputs, **self._on).unbind()
        run = torch.compile(product, dynamic=False, options=TRITON) if triton else product
        row: Row = {"product": weight, "by": "Triton" if triton else "library", "mb": size / 1e6}
        for count in rows:
            given_MI = torch.randn(count, inputs, **self._on)
            row[f"M {count}, us"] = 1e3 * self._in_graph([functools.partial(run, given_MI, one) for one in weights])
        return [row]

    def _copies(self, nbytes: int) -> int:
        return 2 if self._small else max(2, math.ceil(PAST_CACHE / nbytes))

    def _in_graph(self, each: list[Callable[[], torch.Tensor]]) -> float:
        """Return the milliseconds of one of several calls in one graph."""
        turns = math.ceil(READS / len(each))
        with torch.inference_mode(), ints_and_sizes_left_open(), kinds.of(self._device).any_shape():
            replay = recorded(lambda: [call() for _ in range(turns) for call in each][-1], self._device)
            return milliseconds(lambda: [replay() for _ in range(QUEUED)]) / QUEUED / turns / len(each)

    def equal(self, way: str) -> list[Row]:
        """Compare the tokens of a small pair in float32 with the reference decoder's."""
        require_compiler(way, self._device)
        target, draft, tokenizer = loaded("small", self._device, torch.float32)
        models = Models(target, draft, tokenizer, stop_token_ids(target, tokenizer))
        prompts, new, found = held_out_prompts(tokenizer, 4, 96), 12 if self._small else 48, []
        judge = Judge(models, prompts, new)
        for scheme in ("plain", "ragged"):
            started = time.perf_counter()
            decode = ours(models, scheme, 4, layers=way, **schemes(3)[scheme]).decode
            row = one(decode, judge, prompts, new, math.inf)
            if row["fault"] or row["bugs"]:
                raise AssertionError(f"{scheme}, {way}: expected the reference decoder's tokens, got {row}")
            spent = time.perf_counter() - started
            found.append({"scheme": scheme, "way": way, "equal": row["exactness"], "seconds": spent})
        return found

    @functools.cached_property
    def _models(self) -> Models:
        return Models(*loaded(self._pair, **self._on), frozenset())

    def _prompts(self, batch: int) -> list[list[int]]:
        return held_out_prompts(self._models.tokenizer, batch)

    def _pipe(self, layers: str, batch: int, **how: Any) -> Pipeline:
        require_compiler(layers, self._device)
        return Pipeline(
            self._models.target, batch_size=batch, layers=layers, graphs="on", generation_config=None, **how
        )

    @contextlib.contextmanager
    def _decoding(
        self, layers: str, batch: int, length: int, rounds: str = "deferred"
    ) -> Iterator[tuple[Callable[[], int], list[Graph]]]:
        """Open a run of a draft length, 0 for plain decoding: what decodes a round of it and returns its tokens, and its graphs.

        Pipelines stay for the next run; those of other ``layers`` are let go.
        """
        key = layers, batch, length, rounds
        if key not in self._pipes:
            if any(layers != other for other, *_ in self._pipes):
                self._pipes.clear()
            drafting = {"drafter": self._models.draft, "draft_length": length, "accept": SYNTHETIC}
            chosen = drafting if length else {"drafter": None}
            self._pipes[key] = self._pipe(layers, batch, rounds=rounds, **chosen), []
        pipe, made = self._pipes[key]
        longest = 6 * (WARM + self._timed + 4)  # no row ends while rounds are timed
        with graphs(made), contextlib.closing(pipe.stream(self._prompts(batch), longest)) as chunks:

            def decode() -> int:
                return sum(len(next(chunks).token_ids) for _ in range(batch))  # each row has a chunk of each round

            for _ in range(WARM):
                decode()
            yield decode, made


def product(given_MI: torch.Tensor, weight_OI: torch.Tensor) -> torch.Tensor:
    """Return the product of a linear layer."""
    return torch.nn.functional.linear(given_MI, weight_OI)


def beyond(spent: float, found: Row) -> float | None:
    """Return the milliseconds in which no kernel ran, or None if no kernels were seen."""
    return None if found["kernels_ms"] is None else spent - found["kernels_ms"]


def loaded(pair: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """Return target, draft and tokenizer of a pair, made on the device where random numbers can be drawn there."""
    on = device if device.type == "cuda" else torch.device("cpu")
    target, draft, tokenizer = load_pair(pair, on, dtype)
    return target.to(device), draft.to(device), tokenizer


def compiles(device: torch.device) -> bool:
    """Return whether torch.compile makes kernels for a device."""
    return device.type in ("cpu", "cuda")


def require_compiler(layers: str, device: torch.device) -> None:
    """Raise :class:`AbsentError` where layers are to be compiled and cannot be."""
    if layers != "eager" and not compiles(device):
        raise AbsentError(f"there is no compiler for {device.type}")
