"""The simulated accelerator: real values, the strictness of CUDA, counts, memory and graphs."""

from __future__ import annotations

import ast
import contextlib
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import specframe_testing.device.kind  # noqa: F401 - it registers the device
import torch
from specframe_testing import suite_device, zoo
from specframe_testing.conformance import AcceptanceRuleSuite
from specframe_testing.device.captured_graphs import SimRecording
from specframe_testing.device.counters import COPY, COUNTERS, WAIT, count
from specframe_testing.device.device_memory import MEMORY

from specframe.devices import kinds
from specframe.errors import OptionError

SIM, OTHER = torch.device("sim:0"), torch.device("sim:1")
ROOT = Path(__file__).parents[3]


def sim(*values: float) -> torch.Tensor:
    """Return values on the device."""
    return torch.tensor(values).to(SIM, non_blocking=True)


def events(act: Callable[[], Any]) -> tuple[int, int]:
    """Return the waits and copies of an act."""
    with COUNTERS.watched() as seen:
        act()
    return count(seen, WAIT), count(seen, COPY)


@pytest.mark.wide
def test_a_view_is_the_same_memory() -> None:
    """What is written to a view is in the tensor that it is a view of."""
    whole = torch.zeros(4, 3, device=SIM)
    whole[1].add_(2)
    whole.view(-1)[:2].copy_(sim(7, 8))
    assert whole.tolist() == [[7, 8, 0], [2, 2, 2], [0, 0, 0], [0, 0, 0]]


MIXES = {
    "sum": lambda: sim(1, 2) + torch.ones(2),
    "sum, turned": lambda: torch.ones(2) + sim(1, 2),
    "written": lambda: torch.ones(2).add_(sim(1, 2)),
    "product": lambda: torch.ones(2, 2) @ sim(1, 2),
    "lookup": lambda: torch.nn.functional.embedding(torch.tensor([1]), sim(1, 2)[:, None]),
    "cat": lambda: torch.cat([sim(1), torch.ones(1)]),
    "gather": lambda: sim(1, 2).gather(0, torch.tensor([1])),
    "scatter": lambda: sim(1, 2).scatter_(0, torch.tensor([1]), 3.0),
    "rows": lambda: sim(1, 2).index_select(0, torch.tensor([1])),
    "two devices": lambda: sim(1, 2) + sim(1, 2).to(OTHER),
}


@pytest.mark.wide
@pytest.mark.parametrize("name", MIXES)
def test_mixes_are_refused(name: str) -> None:
    """An operation on tensors of several devices is an error that names them."""
    with pytest.raises(RuntimeError, match=r"same device.*(cpu|sim:1)"):
        MIXES[name]()


TRAFFIC = {
    "item": (lambda: sim(1).item(), (1, 1)),
    "truth": (lambda: bool(sim(1)), (1, 1)),
    "list": (lambda: sim(1, 2).tolist(), (1, 1)),
    "to the host": (lambda: torch.zeros(2, device=SIM).cpu(), (1, 0)),
    "written to the host": (lambda: torch.zeros(2).copy_(torch.zeros(2, device=SIM)), (1, 0)),
    "to the device": (lambda: torch.zeros(2).to(SIM), (1, 1)),
    "to the device, going on": (lambda: torch.zeros(2).to(SIM, non_blocking=True), (0, 1)),
    "of a list": (lambda: torch.tensor([1, 2], device=SIM), (1, 1)),
    "index of the host": (lambda: torch.zeros(2, device=SIM)[torch.tensor([1])], (1, 1)),
    "index by a list": (lambda: torch.zeros(2, device=SIM)[[1]], (1, 1)),
    "index by a mask": (lambda: torch.zeros(2, device=SIM)[torch.zeros(2, device=SIM) > 0], (1, 0)),
    "fill by a mask": (lambda: torch.zeros(2, device=SIM).masked_fill_(torch.zeros(2, device=SIM) > 0, 1), (0, 0)),
    "nonzero": (lambda: torch.zeros(2, device=SIM).nonzero(), (1, 0)),
    "equal": (lambda: torch.equal(torch.zeros(2, device=SIM), torch.zeros(2, device=SIM)), (1, 0)),
    "unique": (lambda: torch.zeros(2, device=SIM).unique(), (1, 0)),
    "synchronise": (lambda: kinds.of(SIM).synchronise(SIM), (1, 0)),
    "whole numbers": (lambda: kinds.on_device([1, 2], SIM), (0, 1)),
    "computing": (lambda: (torch.arange(4, device=SIM) * 2).view(2, 2).argmax(-1).gather(0, _zeros()), (0, 0)),
    "another device": (lambda: torch.zeros(2, device=SIM).to(OTHER), (0, 0)),
}


def _zeros() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.long, device=SIM)


@pytest.mark.wide
@pytest.mark.parametrize("name", TRAFFIC)
def test_waits_and_copies_are_counted(name: str) -> None:
    """Everything for which the host synchronises on CUDA is a wait here, and every transfer to the device a copy."""
    act, expected = TRAFFIC[name]
    assert events(act) == expected


@pytest.mark.wide
def test_events_say_where() -> None:
    """An event has the file and line of the code outside of torch that caused it."""
    with COUNTERS.watched() as seen:
        torch.zeros(1, device=SIM).item()
    found = [event for event in seen if event.kind == WAIT]
    assert [event.what for event in found] == ["item"]
    assert found[0].place.partition(":")[0].endswith("test_device.py")
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert ".item()" in source[int(found[0].place.partition(":")[2]) - 1]


@pytest.mark.wide
def test_refused_where_it_is_said() -> None:
    """Inside a block that refuses waits, one is an error that says what, where and why."""
    with COUNTERS.refused(WAIT, where="in a loop"), pytest.raises(RuntimeError, match=r"item.*test_device.*in a loop"):
        torch.zeros(1, device=SIM).item()
    torch.zeros(1, device=SIM).item()


@pytest.mark.wide
def test_numpy_is_refused() -> None:
    """As on CUDA, an array has to be asked for through the host."""
    with pytest.raises(TypeError, match="cpu"):
        torch.zeros(1, device=SIM).numpy()


@pytest.mark.wide
def test_memory_is_counted_and_limited() -> None:
    """Memory in use is that of the tensors that are held, views held included; beyond a limit CUDA's error is raised."""
    gc.collect()
    before = MEMORY.used[0]
    held = torch.zeros(1000, device=SIM)
    view = held[:2]
    assert MEMORY.used[0] - before == 4000
    del held
    assert MEMORY.used[0] - before == 4000
    del view
    assert MEMORY.used[0] == before
    with MEMORY.limited(before + 3000):
        kept = torch.zeros(500, device=SIM)
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            torch.zeros(500, device=SIM)
        torch.zeros(500, device=OTHER)
        del kept
        torch.zeros(500, device=SIM)


@pytest.mark.wide(but=["index_copy"])
@pytest.mark.parametrize("way", ["index_copy", "index_put", "scatter"])
def test_the_first_of_several_writes_to_one_place_stands(way: str) -> None:
    """What a GPU leaves open is decided otherwise than on a CPU, where the last write is kept; other places are written alike."""
    found = {}
    for device in ("cpu", "sim"):
        into, index = torch.zeros(4, device=device), torch.tensor([2, 0, 2, 3]).to(device)
        source = torch.tensor([1.0, 2.0, 3.0, 4.0]).to(device)
        if way == "index_copy":
            into.index_copy_(0, index, source)
        elif way == "index_put":
            into[index] = source
        else:
            into.scatter_(0, index, source)
        found[device] = into.tolist()
    assert found == {"cpu": [2.0, 0.0, 3.0, 4.0], "sim": [2.0, 0.0, 1.0, 4.0]}


@pytest.mark.wide
def test_a_graph_is_replayed_in_its_memory() -> None:
    """A replay reads the present values of its inputs, writes where the captured function wrote, and adds to what is there."""
    given, total = torch.zeros(2, 3, device=SIM), torch.zeros(3, device=SIM)

    def act() -> tuple[torch.Tensor, ...]:
        doubled = given * 2
        doubled[:, 0] += 1
        total.add_(doubled.sum(0))
        return doubled, doubled.t()[1]

    graph = SimRecording(act)
    graph.replay(1)  # has the results of before
    total.zero_()
    for value in (1, 4):
        given.fill_(value)
        doubled, column = graph.replay(1)
        assert doubled.tolist() == [[2 * value + 1, 2 * value, 2 * value]]
        assert column.tolist() == [2 * value]
    assert total.tolist() == [24, 20, 20]


REFUSED = {
    "item": lambda given: given.sum().item() * given,
    "nonzero": lambda given: given.nonzero(),
    "mask": lambda given: given[given > 0],
    "index of the host": lambda given: given[torch.tensor([0])],
    "new on the host": lambda given: given + torch.tensor([1.0, 2.0], device=SIM),
    "sent": lambda given: given + torch.ones(2).to(SIM, non_blocking=True),
}


@pytest.mark.wide
@pytest.mark.parametrize("name", REFUSED)
def test_a_graph_refuses(name: str) -> None:
    """What a CUDA graph cannot record is refused; what follows can be captured again."""
    given = torch.ones(2, device=SIM)
    with pytest.raises(RuntimeError, match="while a graph is recorded"):
        SimRecording(lambda: (REFUSED[name](given),))
    assert SimRecording(lambda: (given * 3,)).replay(2)[0].tolist() == [3, 3]


@pytest.mark.wide
def test_a_number_of_the_host_is_baked_into_a_graph() -> None:
    """A graph keeps the numbers that Python had when it was captured, as CUDA does."""
    given, number = torch.ones(2, device=SIM), 5
    graph = SimRecording(lambda: (given * number,))
    number = 7
    assert [graph.replay(2)[0].tolist() for _ in range(2)] == [[5, 5]] * 2


@pytest.mark.wide
def test_nothing_is_computed_while_a_graph_is_recorded() -> None:
    """The first replay has the results of before; memory of the graph holds nothing of use until it is replayed."""
    held = []

    def act() -> tuple[torch.Tensor, ...]:
        held.append(torch.ones(2, device=SIM) + 1)
        return (held[-1],)

    graph = SimRecording(act)
    assert graph.replay(2)[0].tolist() == [2, 2]
    assert held[-1].isnan().all()
    assert graph.replay(2)[0].tolist() == [2, 2]
    assert held[-1].tolist() == [2, 2]


def test_a_graph_does_not_keep_the_memory_that_it_reads() -> None:
    """What was there before a graph has to be there at each replay, and what the graph has made is its own."""
    held = {"given": torch.ones(2, 3, device=SIM)}
    held["view"] = held["given"][1:]
    graph = SimRecording(lambda: ((held["view"].t() * 2).t() + held["given"],))
    graph.replay(2)
    assert graph.replay(2)[0].tolist() == [[3, 3, 3]] * 2
    held["given"] = torch.zeros(2, 3, device=SIM)
    assert graph.replay(2)[0].tolist() == [[3, 3, 3]] * 2, "a view holds the memory"
    del held["view"]
    with pytest.raises(RuntimeError, match="uses memory that was given back after the graph was recorded"):
        graph.replay(2)


@torch.inference_mode()
def test_a_mask_has_to_be_aligned() -> None:
    """A mask that begins between two words of 16 bytes is refused, as CUDA's kernel ends in an error there."""
    heads, mask = torch.ones(1, 2, 1, 8, device=SIM), torch.zeros(1, 1, 1, 16, device=SIM)
    for first, fits in ((0, True), (3, False), (4, True)):
        refused = pytest.raises(RuntimeError, match="misaligned address: the mask begins 3")
        with contextlib.nullcontext() if fits else refused:
            torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, mask[..., first : first + 1])


def test_a_draft_of_a_model_on_the_device() -> None:
    """A model on the device gets a draft beside it, with the noise that one of the CPU would have."""
    target = zoo.build("qwen3")
    wanted = zoo.good_draft(target)
    found = dict(zoo.good_draft(target.to("sim")).named_parameters())
    for name, weights in wanted.named_parameters():
        assert found[name].device == SIM
        assert torch.equal(found[name].detach().cpu(), weights.detach())


@pytest.mark.wide
def test_suites_of_cuda_leave_the_simulated_device_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that asks for the simulated device is skipped where suites run on CUDA."""
    monkeypatch.setattr(suite_device, "NAME", "cuda:0")
    with pytest.raises(pytest.skip.Exception, match="suites run on CUDA"), suite_device.running_on("sim"):
        pass
    monkeypatch.setattr(suite_device, "NAME", "cpu")
    with suite_device.running_on("sim"):
        assert suite_device.NAME == "sim"


class Greedy(AcceptanceRuleSuite):
    """The suite of a rule for trees as well."""

    def make(self) -> str:
        return "greedy"


def test_suites_run_on_the_device() -> None:
    """The suite of acceptance rules makes its tensors on the device that it is asked to run on."""
    with suite_device.running_on("sim"):
        for test in (Greedy.test_tree_path, Greedy.test_siblings, Greedy.test_full_acceptance, Greedy.test_shapes):
            test(Greedy())


def test_a_device_after_the_last_one_is_refused() -> None:
    """Devices are counted from 0: of two the number 2 is none."""
    assert kinds.pick("sim:1") == OTHER
    with pytest.raises(OptionError, match="sim:2"):
        kinds.pick("sim:2")


@pytest.mark.wide
def test_a_kind_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose entry point cannot be imported is one sentence."""
    from importlib.metadata import EntryPoint

    monkeypatch.setattr(kinds, "entry_point", lambda name: EntryPoint(name, "no_such_module:KIND", "specframe.devices"))
    monkeypatch.setattr(kinds, "is_name", lambda name: True)
    with pytest.raises(OptionError, match=r"device 'abacus' cannot be had: no_such_module:KIND raises .*No module"):
        kinds.pick("abacus")


@pytest.mark.wide
def test_an_unknown_kind_is_an_accelerator_of_which_nothing_is_known() -> None:
    """A device without an entry point has no graphs, no kernels and no events, and reading its values may wait."""
    unknown = kinds.of(torch.device("meta"))
    assert (unknown.queues, kinds.of(torch.device("cpu")).queues) == (True, False)
    assert (unknown.recording, unknown.event, unknown.kernels, unknown.traffic()) == (None, None, frozenset(), None)


@pytest.mark.wide
@pytest.mark.parametrize(
    "package",
    [ROOT / "specframe", *sorted(path.parent for path in ROOT.glob("plugins/*/specframe_*/__init__.py"))],
    ids=lambda p: p.name,
)
def test_one_place_knows_kinds_of_devices(package: Path) -> None:
    """No module but those of ``devices/`` and the test kit compares a device's type with CUDA's, or calls ``torch.cuda``."""
    allowed = (ROOT / "specframe" / "devices", ROOT / "plugins" / "specframe-testing" / "specframe_testing")
    found = []
    for path in sorted(package.rglob("*.py")):
        if not any(folder in path.parents for folder in allowed):
            nodes = filter(asks, ast.walk(ast.parse(path.read_text())))
            found += [f"{path.relative_to(ROOT)}:{node.lineno}" for node in nodes]
    assert found == []


def asks(node: ast.AST) -> bool:
    """Return whether code asks for CUDA: a comparison with its name, or its module in torch."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        return any(isinstance(one, ast.Constant) and one.value in ("cuda", "sim") for one in sides)
    return isinstance(node, ast.Attribute) and node.attr in ("cuda", "is_cuda")
