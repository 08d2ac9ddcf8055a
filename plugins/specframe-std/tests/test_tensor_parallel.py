"""The executor ``tp``: a pair of processes, which runs many cases, decodes to the tokens of one and fails together."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from specframe_std.executors import launch, sharding
from specframe_std.executors.tp import TensorParallel
from specframe_testing import harness, zoo
from specframe_testing.conformance import ExecutorSuite

from specframe.cli import cli
from specframe.errors import ModelError, OptionError
from specframe.models.loading import load_model

WORKER = Path(__file__).with_name("ranks_worker.py")
PROMPTS = [[5, 9, 31, 7, 2, 60], [11], [40, 41, 42, 43, 44, 45, 46, 47, 48], [8, 3, 77, 15], [90, 1, 33]]
NEW = [12, 9, 14, 6, 11]
"""Those of the worker."""

SHARED = 96
"""Tokens of the vocabulary: transformers 5.17 shares a language modelling head only where the number of ranks divides them."""

SECONDS = 1200
"""Most that a pair of processes may take: they take half a minute, and forty times as long beside much else is no fault."""

ALIGNMENTS = ("ragged", "eqspec", "exspec")
EXACT = ["exact:ragged:3", *(f"exact:{align}:goodput,maximum=4" for align in ALIGNMENTS)]
HEADS = ["head:tiny-eagle3"]
SLOW_HEADS = ["head:tiny-clover2", "head:tiny-medusa"]
"""Heads that have the target's embedding, or its language modelling head, which the ranks have in parts."""
FAST = [*EXACT, *HEADS, "late", "aborted", "command", "out_of_memory", "missed", "failing", "three_heads"]
OTHERS = ("mistral", "gemma3", "phi3", "glm4", "qwen3-moe", *zoo.HYBRIDS)
"""Further architectures, with heads that two ranks share; of layers with states both have all."""
ALSO_EXACT = [
    *("exact:eqspec:3", "exact:exspec:3", "exact:rollback:3", "exact:rollback:goodput,maximum=4"),
    *("pieces", "lookup", "kept", "buffered"),
    *(f"exact:ragged:goodput,maximum=4:{name}" for name in OTHERS),
]
SLOW = [
    *ALSO_EXACT,
    *SLOW_HEADS,
    *("sharded", "drawn", "no_memory_to_open", "bitwise", "device", "parted", "no_plan", "whole"),
]

Found = Callable[[str], list[Any]]


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process that is started beside another one."""
    quiet = {"OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error", "GLOO_SOCKET_IFNAME": "lo"}
    return os.environ | quiet | more


def model(name: str) -> Any:
    """Return a small model that two ranks can share."""
    return zoo.build(name, vocab_size=SHARED, **({"num_key_value_heads": 2} if name == "glm4" else {}))


def decoded(folder: Path, cases: list[str], ends: tuple[int, int] = (0, 0)) -> Found:
    """Run cases on two ranks, which end with these statuses, and return what both found."""
    zoo.save_pair(folder, vocab_size=SHARED)
    for name in {case.split(":")[3] for case in cases if case.count(":") == 3} | {"llama", "gpt2"}:
        model(name).save_pretrained(folder / name)
        zoo.character_tokenizer().save_pretrained(folder / name)
    logs = [folder / f"log{rank}.txt" for rank in range(2)]
    with logs[0].open("w") as log:
        command = [sys.executable, WORKER, folder, "2", *cases]
        started = subprocess.Popen(
            command, env=environment(), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        first = started.wait(SECONDS)
        assert [first, *json.loads((folder / "ended.json").read_text())] == [*ends], ends_of(logs)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)

    def found(case: str) -> list[Any]:
        files = [folder / f"{case}.{rank}.json" for rank in range(2)]
        return [json.loads(file.read_text()) if file.exists() else None for file in files]

    return found


def ends_of(logs: list[Path]) -> list[str]:
    """Return the ends of logs, as far as there are any."""
    return [log.read_text()[-2000:] for log in logs if log.exists()]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return decoded(tmp_path_factory.mktemp("ranks"), FAST)


@pytest.fixture(scope="module")
def also_found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return decoded(tmp_path_factory.mktemp("ranks"), SLOW)


@pytest.fixture
def of_both(request: pytest.FixtureRequest) -> Found:
    """A function that returns what both ranks found in a case, one of either run."""
    return lambda case: request.getfixturevalue("found" if case in FAST else "also_found")(case)


def expected(name: str = "qwen3") -> list[Any]:
    """Return the reference decoder's tokens, and why each sequence ends, in one process."""
    asked = harness.requests(PROMPTS, NEW, {zoo.EOS})
    return [[*map(list, [tokens]), reason] for tokens, reason in (harness.expected(model(name), one) for one in asked)]


@pytest.mark.wide
@pytest.mark.parametrize("case", [*EXACT, "late", *(pytest.param(case, marks=pytest.mark.slow) for case in ALSO_EXACT)])
def test_equals_one_process(of_both: Found, case: str) -> None:
    """Both ranks have the reference's tokens: all alignments, policies, stores, architectures, and a clock ahead."""
    assert of_both(case) == [expected(*case.split(":")[3:])] * 2


@pytest.mark.slow  # begins two ranks
@pytest.mark.parametrize("case", [*HEADS, *SLOW_HEADS])
def test_heads_that_borrow_of_the_target_equal_one_process(of_both: Found, case: str) -> None:
    """A head that borrows parts of a target whose weights the ranks share has the tokens of one process on both ranks."""
    tiny = load_model("tiny", "target", torch.device("cpu"), torch.float32)
    asked = harness.requests(PROMPTS, NEW, {zoo.EOS})
    wanted = [[list(ids), reason] for ids, reason in (harness.expected(tiny, one) for one in asked)]
    assert of_both(case) == [wanted] * 2


@pytest.mark.slow
def test_a_split_draft_model(also_found: Found) -> None:
    """With ``draft=sharded`` the draft model is split, too, and the tokens are the reference's."""
    assert also_found("sharded") == [[expected(), {"target": "DTensor", "draft": "DTensor"}]] * 2


@pytest.mark.slow
def test_draws_what_one_process_draws(also_found: Found) -> None:
    """A seed gives the tokens that it gives in one process."""
    from specframe.text.sampling import Sampling

    target = model("qwen3")
    pipe = harness.pipeline(target, zoo.good_draft(target), accept="gumbel", seed=3, draft_length=3, batch_size=3)
    drawn = [result.token_ids for result in pipe.generate(PROMPTS, 8, sampling=Sampling(temperature=1.0, samples=2))]
    assert also_found("drawn") == [drawn] * 2


@pytest.mark.wide
def test_memory_that_runs_out_on_one_rank(found: Found) -> None:
    """All ranks go on with half the rows and lose no token where memory runs out on one, in a forward; rank 0 reports it once."""
    told = ["the device's memory ran out: going on in batches of 1"]
    assert found("out_of_memory") == [[expected(), 1, told], [expected(), 1, []]]


@pytest.mark.slow
def test_memory_for_caches_that_runs_out_on_one_rank(also_found: Found) -> None:
    """The same holds where one rank has no memory for its caches."""
    assert also_found("no_memory_to_open") == [[expected(), 1]] * 2


@pytest.mark.wide
def test_a_fault_of_one_rank_ends_the_run_of_all(found: Found) -> None:
    """Rank 1 reports what its strategy did, rank 0 that rank 1 has failed and why; the ranks can decode again afterwards."""
    first, second = found("failing")
    assert second["error"] == "ContractError"
    assert "store.write() raised ValueError: a slot is on fire" in second["told"]
    assert first == {"error": "RankError", "told": f"rank 1: {second['told']}"}


@pytest.mark.wide
def test_a_request_is_aborted_on_all_ranks(found: Found) -> None:
    """Where the ranks name two requests, that of rank 0 ends, and the others finish in the same order, with the same tokens."""
    first, second = found("aborted")
    assert first == second
    gone, done = first
    want = {index: harness.continuation(model("qwen3"), PROMPTS[index], 10) for index in range(1, 5)}
    assert (gone, dict(done)) == (0, want)


TOLD = {
    "missed": ("RankError", "rank 1: no memory to learn"),
    "three_heads": ("ModelError", "the target has num_key_value_heads 3: expected a number that 2 ranks share evenly"),
    "parted": (
        "ModelError",
        "rank 1 has other tokens, or another model, than rank 0: expected equal devices and files on every rank",
    ),
    "no_plan": (
        "ModelError",
        "the target is a gpt2 model: expected one that transformers has a tensor parallel plan for, got one without",
    ),
    "whole": (
        "ModelError",
        "the target is a loaded Qwen3ForCausalLM, and whole: expected a name or a directory with executor tp, or a model "
        "loaded with DistributedConfig(tp_size=2)",
    ),
    "bitwise": (
        "OptionError",
        "bitwise: expected an executor of one process, since ranks add up in another order, got tp",
    ),
    "device": (
        "OptionError",
        "device 'cuda:1': expected auto or cpu with executor tp, which gives each rank a device of its own",
    ),
}
"""Memory that runs out for a drafter after a round is committed, which is not tried again; ranks whose tokens part;
models that cannot be split, and options that do not go with ranks."""


@pytest.mark.wide
@pytest.mark.parametrize("case", [pytest.param(case, marks=() if case in FAST else pytest.mark.slow) for case in TOLD])
def test_both_ranks_tell_the_same_error(of_both: Found, case: str) -> None:
    """What ends the run of one rank, or cannot be had, is the same sentence on both."""
    assert of_both(case) == [dict(zip(("error", "told"), TOLD[case], strict=True))] * 2


@pytest.mark.wide
def test_only_rank_zero_writes(found: Found) -> None:
    """``specframe run`` prints on rank 0 and nothing on rank 1, and the files of results and figures are written once."""
    (status, printed), second = found("command")
    assert (status, second) == (0, [0, ""])
    assert printed.count("[0] length, 6 tokens\n") == 1
    assert printed.count(" tokens a round, where plain decoding gains 1") == 1


def torchrun(folder: Path, *arguments: str) -> list[tuple[int, str]]:
    """Return the exit status and the output of two ranks of ``specframe run``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    models = zoo.save_pair(folder, vocab_size=SHARED)
    command = [sys.executable, "-m", "specframe", "run", "--executor", "tp,timeout=600", "--device", "cpu", *models]
    started = [
        subprocess.Popen(
            [*command, *arguments],
            env=environment(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        return [(one.wait(), out) for one, out in ((one, one.communicate(timeout=SECONDS)[0]) for one in started)]
    finally:
        for one in started:
            one.kill()


@pytest.mark.slow
def test_an_error_of_rank_zero_ends_all_ranks(tmp_path: Path) -> None:
    """A file that rank 0 alone cannot write is reported once, and both ranks end with its exit status."""
    (tmp_path / "taken").write_text("something else")
    (first, told), second = torchrun(tmp_path, "--output", str(tmp_path / "taken"), "def f")
    assert (first, second) == (2, (2, ""))
    assert told.count("Error: --output: ") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "end", "told"),
    [("killed", -9, "another rank has ended without a word"), ("gone", 0, "rank 1: its program has ended")],
)
def test_a_rank_that_ends_is_noticed(tmp_path: Path, case: str, end: int, told: str) -> None:
    """Nobody waits for a rank that is killed in the middle of a forward, or that has nothing more to decode."""
    first, _ = decoded(tmp_path, [case], (0, end))(case)
    assert first == {"error": "RankError", "told": told}


@pytest.mark.wide
def test_a_process_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torchrun the executor says how it is started, before a model is loaded."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OptionError, match=r"executor tp: expected a process that torchrun has started, as torchrun"):
        harness.pipeline(zoo.build("qwen3"), None, executor="tp")


@pytest.mark.wide
@pytest.mark.parametrize("command", ["compare", "verify"])
def test_commands_of_one_process_refuse_it(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that steps engines by itself says so in one sentence, with torchrun as without."""
    for ranks in ({}, {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "x", "MASTER_PORT": "1"}):
        for name, value in ranks.items():
            monkeypatch.setenv(name, value)
        done = CliRunner().invoke(cli, [command, "--executor", "tp", "--output", str(tmp_path / "out"), "x"])
        assert (done.exit_code, [*tmp_path.iterdir()]) == (2, [])
        assert done.stderr == (
            "Error: --executor: expected one of one process, such as local, got 'tp', which is for `specframe run`\n"
        )


@pytest.mark.wide
@pytest.mark.parametrize(
    ("given", "told"),
    [({"draft": "halved"}, "expected replicated or sharded, got 'halved'"), ({"timeout": 0}, "timeout: expected")],
)
def test_options(given: dict[str, Any], told: str) -> None:
    """Options with another value are refused in one sentence."""
    with pytest.raises(OptionError, match=told):
        TensorParallel(**given)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("config", "ranks", "told"),
    [
        ({"num_key_value_heads": [4, 6]}, 4, "num_key_value_heads 6: expected a number that 4 ranks"),
        ({"num_attention_heads": 6}, 4, "num_attention_heads 6: expected"),
        ({"base_model_tp_plan": None}, 2, "a tensor parallel plan"),
        ({"num_key_value_heads": None}, 2, None),
        ({"num_key_value_heads": 3, "base_model_tp_plan": {"layers.*.mlp.up_proj": "colwise"}}, 2, None),
        (
            {
                "is_heterogeneous": True,
                "per_layer_config": [types.SimpleNamespace(num_attention_heads=one) for one in (4, 3)],
            },
            2,
            "num_attention_heads 3",
        ),
    ],
    ids=["layers", "queries", "plan", "one number", "whole heads", "one layer"],
)
def test_heads_are_counted_before_weights_are_read(config: dict[str, Any], ranks: int, told: str | None) -> None:
    """Heads that the ranks cannot share evenly are refused, where the plan splits them at all."""
    usual = {"model_type": "small", "num_attention_heads": 4, "num_key_value_heads": 4}
    plan = {"base_model_tp_plan": {"layers.*.self_attn.k_proj": "colwise"}}
    made: Any = types.SimpleNamespace(**usual | plan | config)
    made.get_text_config = lambda: made
    if told is None:
        sharding.require_divisible("target", made, ranks)
        return
    with pytest.raises(ModelError, match=told):
        sharding.require_divisible("target", made, ranks)


@pytest.mark.wide(but=["test_equals_reference[exspec]"])
class TestTensorParallel(ExecutorSuite):
    """The executor ``tp`` with one rank, in this process."""

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _one_rank(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        store = tmp_path_factory.mktemp("rank") / "store"
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
        yield
        launch.leave()

    def make(self) -> str:
        return "tp"
