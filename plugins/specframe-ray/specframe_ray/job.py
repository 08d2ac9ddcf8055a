"""Jobs: rows are read, decoded by actors and written, and what is written is not done again."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa

from specframe.errors import OptionError, PluginError, SpecframeWarning, literal, sentence
from specframe.observe.counts import RunReport
from specframe_ray.machine_versions import difference, versions
from specframe_ray.ray_figures import Tally, merged
from specframe_ray.ray_worker import Decode, WorkerOptions
from specframe_ray.retries import forget_failures, noted
from specframe_ray.rows import ID, Input, RowChunk, block

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_register_timeout_seconds": "900",
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_prestart_worker_first_driver": "0",
}
"""Variables of Ray that are set unless they are. On a loaded machine a worker may take minutes to begin, and Ray would begin one
per CPU before it is known how many are needed."""
for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)

import ray  # noqa: E402 - it reads the variables when it is imported
import ray.data  # noqa: E402
from ray.data import ActorPoolStrategy  # noqa: E402
from ray.data.block import BlockMetadata  # noqa: E402
from ray.data.checkpoint import CheckpointConfig  # noqa: E402
from ray.data.datasource import Datasource, ReadTask  # noqa: E402
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: E402

from specframe_ray.ray_watch import Gone, Progress, WorkerReport, interruptible, nodes_watched, raylet_watched  # noqa: E402

BEGUN = "no cluster can be begun"
ANSWER_SECONDS = 10.0
"""Seconds in which a cluster has to take a connection."""

OWN_CPUS = 4
"""Logical CPUs for reading, filtering and writing, besides those of actors. Fewer make a resumed job wait for ever."""
CHECKPOINT = "_checkpoint"
"""The folder, inside of the output, with the ids of the rows that are written."""


@attrs.frozen
class ResultPlace:
    """Where actors run: how many, and what each takes of its machine."""

    workers: int
    gpus: float
    cpus: float


class Source(Datasource):
    """Reads blocks, one per task."""

    def __init__(self, given: Input) -> None:
        super().__init__()
        self._given = given

    def estimate_inmemory_data_size(self) -> int | None:
        """Return None: it is not known."""
        return None

    def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[ReadTask]:
        """Return a task per block."""
        return [self._task(piece) for piece in self._given.pieces]

    def _task(self, piece: RowChunk) -> ReadTask:
        columns = self._given.columns
        metadata = BlockMetadata(
            num_rows=piece.stop - piece.start, size_bytes=None, input_files=[piece.path], exec_stats=None
        )

        def read() -> Iterable[pa.Table]:
            return [block(piece, columns)]

        return ReadTask(read, metadata)


def map(dataset: ray.data.Dataset, asked: WorkerOptions, place: ResultPlace) -> ray.data.Dataset:
    """Return a data set with the columns of results after its own; nothing is decoded before it is read.

    Raises:
        OptionError: it is no data set of Ray, or a machine of the cluster has other versions than this one.
    """
    if not isinstance(dataset, ray.data.Dataset):
        raise OptionError(f"map: expected a data set of Ray with executor ray, got {literal(dataset)}")
    begin(place)
    require_alike()
    warn_of_waiting(place)
    tally = counting()
    return decoded(dataset, asked, tally, place)


def decoded(dataset: ray.data.Dataset, asked: WorkerOptions, tally: Any, place: ResultPlace) -> ray.data.Dataset:
    """Return a data set, decoded by actors, a block at a time."""
    return dataset.map_batches(
        Decode,
        fn_constructor_args=(asked, tally),
        batch_size=None,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=place.workers),
        num_cpus=place.cpus,
        num_gpus=place.gpus,
    )


def run(
    asked: WorkerOptions,
    given: Input,
    output: str,
    place: ResultPlace,
    form: str,
    progress: Progress = lambda done, total: None,
) -> tuple[int, int, RunReport]:
    """Decode the rows of files that have not been written yet.

    Args:
        asked: what to decode with.
        given: the rows, in chunks that are decoded, written and noted as done together.
        output: the folder of results.
        place: where to decode.
        form: "parquet" or "jsonl".
        progress: receives how many rows are done, of how many.

    Returns:
        The number of rows, the number of those now decoded that failed, and the figures of this run.
    """
    folder = Path(output).absolute()
    try:
        with raylet_watched():
            begin(place)
            require_alike()
            warn_of_waiting(place)
            forget_failures(folder, folder / CHECKPOINT)
            done = noted(folder / CHECKPOINT)
            tally = counting()
            before = time.perf_counter()
            with (
                silent(),
                without_advice(),
                noting(folder / CHECKPOINT),
                nodes_watched(place.cpus, place.gpus),
                WorkerReport(tally.rows.remote, lambda count: progress(done + count, given.rows)),
            ):
                data = ray.data.read_datasource(Source(given), override_num_blocks=len(given.pieces))
                data = decoded(data, asked, tally, attrs.evolve(place, workers=min(place.workers, len(given.pieces))))
                write = data.write_parquet if form == "parquet" else data.write_json
                write(str(folder))
            reports, failed = ray.get(tally.all.remote())
    except Gone:
        with silent():
            ray.shutdown()
        raise PluginError(
            "executor ray: Ray's own process on this machine (raylet) has ended; the rows that are written are kept, and "
            "--resume goes on with the others"
        ) from None
    except ray.exceptions.RayError as error:
        raise PluginError(
            f"executor ray: {told(error)}; --resume goes on with the rows that are not written"
        ) from error
    seconds = time.perf_counter() - before
    return given.rows, failed, merged([RunReport(**one) for one in reports], seconds, failed)


def counting() -> Any:
    """Return an actor that counts, on the machine of this process: without its counts a job cannot report how it went."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(Tally).remote()


@contextlib.contextmanager
def noting(folder: Path) -> Iterator[None]:
    """Have the ids of rows that are written noted in a folder, and rows that are noted left out; no other data set is affected."""
    context = ray.data.DataContext.get_current()
    kept = context.enable_progress_bars, context.checkpoint_config
    context.enable_progress_bars = False
    context.checkpoint_config = CheckpointConfig(
        id_column=ID, checkpoint_path=str(folder), delete_checkpoint_on_success=False
    )
    try:
        yield
    finally:
        context.enable_progress_bars, context.checkpoint_config = kept


def begin(place: ResultPlace) -> None:
    """Join the cluster that RAY_ADDRESS names, or begin one of this machine.

    Raises:
        PluginError: it cannot be joined or begun.
    """
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # errors are raised, in one sentence
    if ray.is_initialized():
        return
    quiet: dict[str, Any] = {"include_dashboard": False, "logging_level": "ERROR", "log_to_driver": False}
    there = os.environ.get("RAY_ADDRESS")
    require_answer(there or "")
    with without_notice(), own_signals():
        try:
            if there:
                interruptible(lambda: ray.init(logging_level="ERROR", log_to_driver=False))
            else:
                cpus = OWN_CPUS + max(1, round(place.workers * place.cpus))
                interruptible(lambda: ray.init("local", num_cpus=cpus, object_store_memory=2**28, **quiet))
        except Exception as error:  # Ray has no class of its own for it
            raise PluginError(f"executor ray: {unjoined(there) if there else BEGUN}: {sentence(error)}") from error


def unjoined(address: str) -> str:
    """Return the words for a cluster that cannot be joined."""
    return f"the cluster of RAY_ADDRESS, {address!r}, cannot be joined"


def require_answer(address: str) -> None:
    """Raise :class:`PluginError` for an address, ``host:port``, at which nobody answers. Ray would try for a quarter of an hour."""
    host, _, port = address.rpartition(":")
    if "/" in address or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or sentence(error)
        raise PluginError(f"executor ray: {unjoined(address)}: {reason}") from error


@contextlib.contextmanager
def own_signals() -> Iterator[None]:
    """Put the handlers of signals back after the block: with those of Ray SIGTERM ends this process as a crash does."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    if threading.current_thread() is threading.main_thread():
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def without_notice() -> Iterator[None]:
    """Leave out of standard error what Ray's own code says about RAY_BACKEND_LOG_LEVEL, and nothing else."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as told:
        os.dup2(told.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            told.seek(0)
            for line in told:
                if b"environment variable RAY_BACKEND_LOG_LEVEL" not in line:
                    os.write(2, line)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Leave standard output, which may be for JSON, to this command: Ray prints there what happens to its own processes."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


@contextlib.contextmanager
def without_advice() -> Iterator[None]:
    """Leave out of standard error what Ray says where there are fewer blocks than actors, as when few are left to resume."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The minimum number of concurrent actors")
        yield


def warn_of_waiting(place: ResultPlace) -> None:
    """Warn where the actors take all CPUs of the cluster, and none is left for reading."""
    have, take = ray.cluster_resources().get("CPU", 0), place.workers * place.cpus
    if have < take + 1:
        warnings.warn(
            f"the cluster has {have:g} CPUs, of which actors take {take:g} and reading 1: it waits until there are more; begin Ray "
            "with more of them, or pass less as cpus",
            SpecframeWarning,
            stacklevel=3,
        )


def told(error: BaseException) -> str:
    """Return the sentence of the innermost error."""
    while (cause := getattr(error, "cause", None) or error.__cause__) is not None:
        error = cause
    if isinstance(error, ray.exceptions.RayActorError) and not error.actor_init_failed:  # its text is a page of details
        return "a process of the job has ended, or was killed"
    system = error.strerror if isinstance(error, OSError) else None
    return system.rstrip(".") if system else sentence(error)  # Ray puts its advice where the file's name would be


def require_alike() -> None:
    """Raise :class:`OptionError` unless every machine of the cluster has the versions of this one."""
    here = versions()
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    asking = ray.remote(num_cpus=0)(versions)
    for node in nodes:
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        try:
            there = ray.get(asking.options(scheduling_strategy=strategy).remote())
        except ray.exceptions.RayError as error:
            raise OptionError(f"executor ray: node {node} cannot begin specframe: {told(error)}") from error
        if other := difference(here, there):
            name, own, its = other
            raise OptionError(
                f"executor ray: expected {name} {own} on every machine, as here, got {its} on node {node}"
            )
