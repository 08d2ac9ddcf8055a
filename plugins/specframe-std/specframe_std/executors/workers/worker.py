"""A worker process: an engine that decodes what messages ask for."""

from __future__ import annotations

import os
import pickle
import queue
import threading
import warnings
from multiprocessing.connection import Connection
from typing import Any

import attrs
import torch

from specframe.contracts.reports import Progress
from specframe.contracts.requests import Request
from specframe.contracts.round import Sequence
from specframe.devices import kinds
from specframe.engine.local_engine import LocalEngine
from specframe.engine.parts import Parts, parts_of
from specframe.errors import ModelError, SpecframeError, SpecframeWarning, sentence
from specframe.models.pairs import is_module
from specframe.observe.counts import PaddingCounts
from specframe.observe.logprobs import Logprobs
from specframe.observe.stopwatch import Stopwatch
from specframe.plugins.recipe import Recipe
from specframe.plugins.registry import registry
from specframe_std.executors.workers import messages as m


def main(pipe: Connection, number: int, count: int) -> None:
    """Decode until the other end of the pipe is closed, or its process is gone.

    Args:
        pipe: to and from the process that deals requests.
        number: of this worker, from 0; on a machine with CUDA devices, it decodes on the one of this number, counted around.
        count: number of workers: they share the threads of the machine.
    """
    import transformers

    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(max(1, torch.get_num_threads() // count))
    with warnings.catch_warnings(action="ignore"):  # the other process has shown which plugins are skipped
        registry()
    Worker(pipe, number).run()


class ForwardCounts(PaddingCounts):
    """Notes forward passes, and the tokens they compute, until they are taken."""

    def __init__(self) -> None:
        super().__init__()
        self._noted: list[tuple[str, int, int]] = []

    def forward(self, model: str, rows: int, tokens: int) -> None:
        """Note a forward pass."""
        self._noted.append((model, rows, tokens))

    def take(self) -> list[tuple[str, int, int]]:
        """Return the forward passes that were not taken yet."""
        noted, self._noted = self._noted, []
        return noted

    def take_tokens(self) -> list[tuple[str, int, int]]:
        """Return how many tokens of each model were real, and computed, since they were last taken."""
        counted = [(model, self.real[model], computed) for model, computed in self.computed.items()]
        self.real.clear()
        self.computed.clear()
        return counted


class Worker:
    """Carries out messages, and reports every round."""

    offers = frozenset[str]()

    def __init__(self, pipe: Connection, number: int) -> None:
        self._pipe, self._number = pipe, number
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._engine: LocalEngine | None = None
        self._parts: Parts | None = None
        self._run = 0
        warnings.showwarning = self._warn
        threading.Thread(target=self._read, daemon=True).start()

    def run(self) -> None:
        """Take messages, and decode while there is something to decode."""
        while True:
            while self._engine is None or self._engine.idle or not self._inbox.empty():
                self._take(self._inbox.get())
            self._step(self._engine)

    def broadcast(self, value: Any) -> Any:
        """Return the value itself: a worker is alone with its rows."""
        return value

    def _read(self) -> None:
        """Read all that comes, so that nobody waits for a round to end; without the other process there is nothing left to do."""
        try:
            while True:
                self._inbox.put(pickle.loads(self._pipe.recv_bytes()))
        except (EOFError, OSError):
            os._exit(0)

    def _send(self, message: Any) -> None:
        try:
            self._pipe.send_bytes(pickle.dumps((self._run, message)))
        except OSError:
            os._exit(0)

    def _warn(self, message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, SpecframeWarning):
            self._send(m.Warned(str(message)))

    def _take(self, message: Any) -> None:
        match message:
            case m.Open():
                self._run = message.run
                self._send(self._begin(message))
            case m.Add():
                if self._engine:
                    self._engine.make_room(message.room)
                for ticket, data in message.requests:
                    self._add(ticket, data)
            case m.Abort():
                if self._engine and (request := self._requests.get(message.ticket)):
                    self._engine.abort(request.key)
                    self._forget(message.ticket)
            case m.Close():
                self._close()

    def _begin(self, asked: m.Open) -> m.Ready | m.Broken:
        """Open an engine as asked, and say whether there is one."""
        try:
            self._load(asked)
            self._open()
        except SpecframeError as error:
            return m.Broken.by(error)
        except Exception as error:
            return m.Broken.by(ModelError(f"worker {self._number} cannot begin: {sentence(error)}"))
        return m.Ready()

    def _load(self, asked: m.Open) -> None:
        """Make the models and strategies of a recipe, unless these are its own already."""
        self._close()
        if asked.recipe is not None:
            self._parts = None
            kinds.kind(asked.kind)
            self._recipe = placed(pickle.loads(asked.recipe), self._number)
            self._parts = parts_of(self._recipe)
        self._recipe = attrs.evolve(self._recipe, batch_size=asked.batch_size, seed=asked.seed)

    def _open(self) -> None:
        """Open an engine without requests."""
        assert self._parts is not None
        device = self._parts.runner.device
        self._clock, self._logprobs, self._forwards = Stopwatch(device), Logprobs(), ForwardCounts()
        watching = [self._clock, self._logprobs, self._forwards]
        self._engine = LocalEngine(self._recipe, self._parts, watching, self._clock, self, installed=False)
        self._unpacking = m.Unpacking(self._parts.tokenizer, device)
        self._requests: dict[int, Request] = {}
        self._tickets: dict[int, int] = {}
        """By the identity of the request, which sequences keep."""

    def _close(self) -> None:
        engine, self._engine = self._engine, None
        if engine:
            engine.close()

    def _add(self, ticket: int, data: bytes) -> None:
        if self._engine is None:
            return
        try:
            request = self._unpacking.request(data)
            self._engine.add(request)
        except Exception as error:  # the request's own objects may raise anything when they are made
            self._send(m.Failed([ticket], sentence(error)))
        else:
            self._requests[ticket], self._tickets[id(request)] = request, ticket

    def _forget(self, ticket: int) -> None:
        del self._tickets[id(self._requests.pop(ticket))]

    def _step(self, engine: LocalEngine) -> None:
        """Decode a round and report it; an error that is not specframe's own is assigned to the requests."""
        try:
            progress = engine.step()
        except SpecframeError as error:
            self._close()
            self._send(m.Broken.by(error))
        except Exception as error:
            held = list(self._requests)
            self._close()
            self._open()
            self._send(m.Failed(held, sentence(error)))
        else:
            if progress is not None:
                self._send(self._round(engine, progress))

    def _round(self, engine: LocalEngine, progress: Progress) -> m.Round:
        tickets = [self._tickets[id(sequence.request)] for sequence in progress.sequences]
        ended = [self._ended(sequence) for sequence in progress.finished]
        return m.Round(
            tickets=tickets,
            prefill=progress.prefill,
            lengths=progress.lengths,
            depth=progress.depth,
            drafted=progress.drafted,
            accepted=progress.accepted,
            tokens=progress.tokens,
            ended=ended,
            forwards=self._forwards.take(),
            fed=self._forwards.take_tokens(),
            stages=self._clock.stages() if ended else {},
            peak_kv_bytes=engine.peak_kv_bytes,
            state_bytes=engine.state_bytes,
        )

    def _ended(self, sequence: Sequence) -> m.Ended:
        ticket, asked = self._tickets[id(sequence.request)], sequence.request.logprobs is not None
        self._forget(ticket)
        assert sequence.finish_reason is not None
        told = self._logprobs.take(sequence) if asked else None
        return m.Ended(ticket, sequence.finish_reason, sequence.token_ids, sequence.metrics, told, sequence.error)


def placed(recipe: Recipe, number: int) -> Recipe:
    """Return the recipe with the device of a worker, and loaded models on it."""
    device = device_of(kinds.pick(str(recipe.device)), number)
    models = {
        name: model.to(device_of(torch.device(model.device.type), number))
        for name in ("target", "drafter")
        if is_module(model := getattr(recipe, name))
    }
    return attrs.evolve(recipe, device=str(device), **models)


def device_of(asked: torch.device, number: int) -> torch.device:
    """Return a worker's device: of several of a kind, the one of its number, counted around, unless one is asked for."""
    count = kinds.of(asked).count()
    return asked if asked.index is not None or count < 2 else torch.device(asked.type, number % count)
