"""Forwards run as pieces give what a model's modules give, whatever the sizes, weights and hidden states."""

from __future__ import annotations

import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import architectures
import pytest
import torch
from specframe_std.graphs.kept_graphs import settings
from specframe_std.kv.slab import SlabStore
from specframe_std.layers import traces
from specframe_std.layers.compile_ahead import begin
from specframe_std.layers.state_calls import StateCalls
from specframe_std.layers.trace_check import require_agreement
from specframe_std.layers.traced_forward import TracedForward, trace
from specframe_testing import harness, zoo
from tracing import layers_of, runner_of

from specframe.contracts.cache import DenseView
from specframe.contracts.roles import Observer
from specframe.errors import ContractError, ModelError, SpecframeWarning
from specframe.model import padding_free
from specframe.model.model_checks import SelfTests
from specframe.model.runner import ModelRunner
from specframe.model.transformers_model import CallOptions
from specframe.model.twin import CURRENT

PIECES = pytest.mark.filterwarnings("error:.*layers are not (traced|compiled)")
"""A test of layers that have to run as pieces: modules have the same tokens."""
PROMPTS = harness.random_prompts([3, 19, 1, 7, 12], zoo.VOCABULARY)
ASKED = harness.requests(PROMPTS, [9, 14, 3, 12, 7], {zoo.EOS})


def check(target: Any, drafted: bool = True, **options: Any) -> None:
    """Decode in chains and prompts, one row and several, a draft model's layers as the target's; compare tokens."""
    options = {"batch_size": 3, "layers": "compiled", **({"draft_length": 3} if drafted else {}), **options}
    harness.check(harness.pipeline(target, zoo.good_draft(target) if drafted else None, **options), ASKED)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Take the code of pieces for compiled as it is, and collect it; files are in a folder of the test's own."""
    found: list[Any] = []

    def collect(graph: Any, path: Path) -> Any:
        found.append(graph)
        return graph.forward

    monkeypatch.setattr(traces, "compile_piece", collect)
    monkeypatch.setattr(traces, "cache_dir", lambda: tmp_path)
    return found


def test_layers_of_other_sizes_have_pieces_of_their_own() -> None:
    """Of three layers the one between has an MLP of another size: no piece is called twice."""
    model = zoo.build("llama", num_hidden_layers=3)
    part = model.model.layers[1].mlp
    for name, narrow in (("gate_proj", part.gate_proj), ("up_proj", part.up_proj)):
        setattr(part, name, torch.nn.Linear(narrow.in_features, 8, bias=False))
    part.down_proj = torch.nn.Linear(8, part.down_proj.out_features, bias=False)
    assert len(trace(runner_of(model)).pieces) == 4


def test_equal_layers_share_a_piece_and_have_their_own_weights() -> None:
    """Equal layers are one piece with weights of their own, be these written to or others in their place."""
    runner = runner_of(zoo.build("llama", num_hidden_layers=3))
    found, attention = trace(runner), runner.module.model.layers[1].self_attn
    assert len(found.pieces) == 3
    assert [node.target for node in found.calls.graph.nodes].count(found.pieces[1].run) == 2
    assert not found.constants
    attention.v_proj.weight.data.mul_(3)
    require_agreement(runner.tests, found, False, False)
    attention.v_proj.weight = torch.nn.Parameter(attention.v_proj.weight.detach() * 3)
    require_agreement(runner.tests, found, False, False)


def test_pieces_are_given_tensors_without_strides() -> None:
    """Compiled code takes ids, positions and the numbers of tokens as they lie in a tensor of their own, and no view of another."""
    given = list[torch.Tensor]()
    calls = types.SimpleNamespace(forward=lambda *tensors: given.extend(tensors))
    wide = torch.arange(40).view(4, 10)
    found = TracedForward([], [], [], [], calls)  # type: ignore[arg-type]
    found(wide[:, :1], wide[:1].expand(4, -1), wide, wide[:, -1:].flatten(), torch.zeros(1))
    assert all(one.is_contiguous() for one in given)
    assert given[3].tolist() == [9, 19, 29, 39]


@PIECES
def test_a_weight_that_is_no_longer_tied_is_seen() -> None:
    """The head gets a weight of its own: the trace of before, which reads one weight for both, is not used."""
    model = zoo.build("opt", num_hidden_layers=1)
    runner = runner_of(model)
    first = layers_of(runner, "traced")
    assert first.holds
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * -1)
    second = layers_of(runner, "traced")
    assert second is not None
    assert second is not first
    require_agreement(runner.tests, second, False, False)


@pytest.mark.wide
def test_hidden_states_are_those_of_the_modules() -> None:
    """The embedding, a layer's output, and those after the last layer with its norm and without are taken as they are else."""
    runner, wanted, found = runner_of(zoo.build("llama")), (0, 1, 2, 3), dict[int, torch.Tensor]()
    tests, (forwards, expected) = runner.tests, runner.taps.placed(wanted, {})
    tests.fed(tests.uneven, CallOptions(forwards=forwards))
    tests.fed(tests.uneven, CallOptions(traced=trace(runner, wanted), hidden=found))
    assert [*found] == [*wanted]
    for number in wanted:
        torch.testing.assert_close(found[number], expected[number])


def test_a_target_is_traced_before_its_first_forward() -> None:
    """That hidden states are taken, or states kept, in modules' place is no change of a model: its first forward may be a trace."""
    assert trace(ModelRunner(architectures.build("mamba2"), "target")).pieces
    assert layers_of(runner_of(zoo.build("llama")), "traced", 2, 2, (0, 1, 2, 3)) is not None


LAYERS = {
    "opt": "compiled",
    "mistral": "traced",
    "falcon_h1": "compiled",
    "diffllama": "traced",
    "gemma2": "compiled",
    "hrm_text": "compiled",
    "inkling_text": "traced",
    "llama4_text": "traced",
    "mamba2": "traced",
    "mixtral": "traced",
    "phimoe": "traced",
    "qwen3_5_text": "compiled",
    "youtu": "traced",
}
SLOW = ("llama", "gpt2", "gemma3", "phi3", "glm4", "qwen3")


@pytest.mark.wide(but=["gemma2", "qwen3_5_text", "youtu"])
@PIECES
@pytest.mark.parametrize("name", [*LAYERS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_what_is_called_between_pieces(compiled: list[Any], name: str) -> None:
    """Layers of all kinds run as pieces, and what cannot is called between them: tokens are exact."""
    layers = LAYERS.get(name, "traced")
    check(zoo.build(name) if name in zoo.NAMES else architectures.build(name), layers=layers)
    assert bool(compiled) == (layers == "compiled")


def test_rows_are_not_laid_in_one_where_pieces_read_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding is left out with a trace whose attention reads keys as they are, and with modules elsewhere."""
    monkeypatch.setattr(padding_free, "LAYING_OUT", 0)
    calls, usual = list[bool](), TracedForward.__call__

    def noted(self: TracedForward, *given: torch.Tensor) -> Any:
        calls.append(CURRENT.get().padding_free is not None)
        return usual(self, *given)

    monkeypatch.setattr(TracedForward, "__call__", noted)
    for name, laid in (("youtu", False), ("llama", True)):
        calls.clear()
        check(architectures.build(name), drafted=False, layers="traced")
        assert calls
        assert any(calls) == laid


def test_masks_that_nobody_makes_are_not_read() -> None:
    """Where attention takes lengths and no mask, modules are called if layers make a mask of the one that they get."""
    target = zoo.build("opt", num_hidden_layers=1)
    (layer,) = target.model.decoder.layers
    usual = layer.forward

    def doubled(hidden: torch.Tensor, attention_mask: torch.Tensor | None = None, **options: Any) -> Any:
        return usual(hidden, attention_mask=None if attention_mask is None else attention_mask * 2, **options)

    layer.forward = doubled
    runner = runner_of(target)
    made = trace(runner)
    assert made.reads == {4}
    assert made.serves(padding_free=False, masks=True)
    assert not made.serves(padding_free=False, masks=False)
    for attention in ("masked", "flex"):
        check(target, drafted=False, layers="traced", attention=attention)


def test_pieces_are_given_the_masks_of_all_rows_without_strides() -> None:
    """A mask that lies apart, or is one row for all, is copied for pieces that read it, and for no others."""
    given = list[torch.Tensor]()
    calls = types.SimpleNamespace(forward=lambda *tensors: given.extend(tensors))
    for mask in (torch.zeros(2, 1, 3, 8)[..., :5], torch.zeros(1, 1, 3, 5)):
        for reads in ({4}, ()):
            found = TracedForward([], [], [], [], calls, reads=frozenset(reads))  # type: ignore[arg-type]
            found(*[torch.zeros(2, 3)] * 4, mask)
            assert (given[-1].is_contiguous() and len(given[-1]) == 2) == bool(reads)
    for name, read in (("gpt_oss", {4, 5}), ("youtu", set()), ("opt", set())):
        made = trace(runner_of(architectures.build(name)))
        key_index = [node for node in made.calls.graph.nodes if node.op == "placeholder"][2]
        assert made.reads == read
        assert not {user.target for user in key_index.users} & {piece.run for piece in made.pieces}


def test_a_trace_keeps_no_states() -> None:
    """What layers note of the tokens of zeros is let go of when the trace is made."""
    runner = ModelRunner(architectures.build("mamba2"), "target")
    calls = StateCalls(runner.state_layers, runner.device)
    with calls.tracing():
        assert calls._states._fed
    assert not calls._states._fed


def test_a_layer_that_is_called_twice_is_refused() -> None:
    """A layer with states that a forward calls twice would go on from the states of the first call."""
    model = architectures.build("mamba2")
    model.backbone.layers[1] = model.backbone.layers[0]
    with pytest.raises(ModelError, match="Mamba2Mixer, which keeps a state, is called twice"):
        trace(ModelRunner(model, "target"))


class Counting(torch.nn.Linear):
    """Counts its calls."""

    calls = 0

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return its output."""
        self.calls += 1
        return super().forward(input)


def test_what_a_trace_would_not_tell_is_refused() -> None:
    """Modules that change as they are called, which stay as they were; hooks; numbers of tokens, slots or indexers that decide."""
    model = zoo.build("llama", num_hidden_layers=1)
    model.lm_head.__class__ = Counting
    runner = runner_of(model)
    before = runner.twin.lm_head.calls
    with pytest.raises(ModelError, match="its forward changes Counting itself"):
        trace(runner)
    assert runner.twin.lm_head.calls == before
    hooked = zoo.build("llama")
    hooked.model.norm.register_forward_hook(lambda *_: None)
    with pytest.raises(ModelError, match="LlamaRMSNorm has hooks"):
        trace(runner_of(hooked))
    for name, reason in (
        ("xglm", "what it computes depends on how many tokens are fed or held"),
        ("bloom", "it adds a bias to scores by the slots of keys"),
        ("axk2", "it has layers that choose what they attend to"),
    ):
        if name not in architectures.OTHERWISE:
            with pytest.raises(ModelError, match=reason):
                trace(runner_of(architectures.build(name)))


@PIECES
def test_hooks_that_ask_for_gradients_change_nothing() -> None:
    """A model whose embeddings have such hooks, as a trainer adds one after each rollout, is traced, and counts as unchanged."""
    model = zoo.build("llama", num_hidden_layers=1)
    model.enable_input_require_grads()
    before = settings(model)
    model.enable_input_require_grads()
    assert settings(model) == before
    harness.check(harness.pipeline(model, None, layers="traced"), harness.requests(PROMPTS[:1], 4))


def test_logits_that_are_no_numbers_are_no_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN is no agreement: no comparison with it holds."""
    tests = ModelRunner(zoo.build("opt"), "target").tests

    def fed(self: SelfTests, _: Any, options: Any = None, store: Any = None) -> torch.Tensor:
        return torch.arange(4.0) * (float("nan") if options else 1.0)

    monkeypatch.setattr(SelfTests, "fed", fed)
    with pytest.raises(ModelError, match="logits are off by nan"):
        require_agreement(tests, object(), False, False)  # type: ignore[arg-type]


def test_compiling_is_no_time_of_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of target and draft model are compiled, or found not to compile, before the first stage of the first round."""
    seen: list[str] = []

    def fails(graph: Any, path: Path) -> Any:
        seen.append("compiler")
        raise RuntimeError("no compiler\nmore of it")

    class Stages(Observer):
        def enter(self, stage: str) -> None:
            seen.append(stage)

    monkeypatch.setattr(traces, "compile_piece", fails)
    target = zoo.build("opt", num_hidden_layers=1)
    pipe = harness.pipeline(target, zoo.good_draft(target), layers="compiled", observers=[Stages()])
    with pytest.warns(SpecframeWarning, match="layers are not compiled, and run eagerly: no compiler") as told:
        harness.check(pipe, harness.requests(PROMPTS[:2], 4))
    assert [line for line in map(str, (one.message for one in told)) if "\n" in line] == []
    assert seen.count("compiler") == 2
    assert "compiler" not in seen[next(at for at, what in enumerate(seen) if what != "compiler") :]


def test_pieces_that_disagree_are_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A compiler that gets it wrong is found out before anything is decoded, for rows and tokens of one as for more."""

    def wrong(graph: Any, path: Path) -> Any:
        return lambda *given: [one * 1.1 if one.is_floating_point() else one for one in graph(*given)]

    monkeypatch.setattr(traces, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(traces, "compile_piece", wrong)
    runner = runner_of(zoo.build("opt", num_hidden_layers=1))
    for rows, width in ((3, 4), (1, 1)):
        with pytest.warns(RuntimeWarning, match="not compiled, and run eagerly: .* off by"):
            assert layers_of(runner, "compiled", rows, width) is None


@PIECES
def test_a_trial_without_memory_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward for whose check there is no memory calls the modules; a later one is checked, and runs as pieces."""
    runner, usual, left = runner_of(zoo.build("opt", num_hidden_layers=1)), require_agreement, [1]

    def runs_out(*given: Any) -> None:
        if left:
            left.pop()
            raise torch.OutOfMemoryError("CUDA out of memory")
        usual(*given)

    monkeypatch.setattr(traces, "require_agreement", runs_out)
    assert layers_of(runner, "traced") is None
    assert layers_of(runner, "traced") is not None


@pytest.fixture
def no_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse the writes of a slab."""

    def refused(self: Any, *given: Any) -> None:
        raise AssertionError("a store has written")

    monkeypatch.setattr(SlabStore, "write", refused)


@pytest.mark.slow
@PIECES
@pytest.mark.usefixtures("no_writes")
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", ["qwen3", pytest.param("gpt2", marks=pytest.mark.nightly)])
def test_tokens_are_exact_when_compiled(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same with torch's own compiler, in which one code serves all sizes, and writes in place."""
    monkeypatch.setattr(traces, "cache_dir", lambda: tmp_path)
    check(zoo.build(name))
    assert [*tmp_path.rglob("*")]


@pytest.mark.wide
@pytest.mark.cuda
@pytest.mark.parametrize("graph", ["on", "off"])
def test_tokens_are_exact_on_cuda(graph: str) -> None:
    """Compiled pieces give the reference's tokens in fp32, captured or not."""
    check(zoo.build("qwen3").to("cuda"), graphs=graph)


def test_auto_takes_pieces_when_they_pay(compiled: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """First modules, then pieces, then those that another process has compiled, at once in the next process."""
    model, begun = zoo.build("opt"), list[Path]()
    monkeypatch.setattr(traces, "TRACING_PAYS", 2)
    monkeypatch.setattr(traces, "COMPILING_PAYS", 3)
    monkeypatch.setattr(traces, "LOOKS", 2)

    def begin(pieces: Any) -> Any:
        begun.extend(path for _, path in pieces)
        return types.SimpleNamespace(kill=lambda: None, poll=lambda: None)

    monkeypatch.setattr(traces, "begin", begin)

    def forwards() -> list[str]:
        runner, told = runner_of(model), []
        for number in range(12):
            if number == 8:
                for path in begun:  # as that process does, at some time
                    path.parent.mkdir(exist_ok=True)
                    path.touch()
            found = layers_of(runner, "auto")
            told.append("eager" if found is None else "compiled" if found.compiled else "traced")
        return told

    assert forwards() == ["eager"] * 2 + ["traced"] * 6 + ["compiled"] * 4
    assert len(begun) == len(compiled) == 3
    assert forwards() == ["eager"] * 2 + ["compiled"] * 10
    assert len(begun) == 3


def test_another_process_that_fails_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Pieces stay as they are where the process that was to compile them ends without: the log says so once."""
    monkeypatch.setattr(traces, "cache_dir", lambda: tmp_path)
    for name, value in {"TRACING_PAYS": 0, "COMPILING_PAYS": 0, "LOOKS": 1}.items():
        monkeypatch.setattr(traces, name, value)
    ended = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
    monkeypatch.setattr(traces, "begin", lambda pieces: ended)
    told = list[str]()
    monkeypatch.setattr(traces._log, "info", told.append)
    runner = runner_of(zoo.build("opt", num_hidden_layers=1))
    assert layers_of(runner, "auto") is not None
    ended.wait()
    assert not any(layers_of(runner, "auto").compiled for _ in range(3))
    assert sum("has ended without" in one for one in told) == 1


@pytest.mark.slow
@PIECES
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_another_process_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What another process has compiled is read from its files, and is tried as what this one has compiled."""
    monkeypatch.setattr(traces, "cache_dir", lambda: tmp_path)
    runner = runner_of(zoo.build("qwen3", num_hidden_layers=1))
    with torch.inference_mode():
        pieces = [(piece.graph, traces.compiled_file(piece)) for piece in trace(runner).pieces]
        assert begin(pieces).wait() == 0
        monkeypatch.setattr(torch._inductor, "standalone_compile", None)  # nothing is compiled here
    assert layers_of(runner, "compiled").compiled


ALIGNMENTS = {
    "ragged": {},
    "mixed": {"schedule": "continuous,mixed=on,piece=4"},
    "eqspec": {"align": "eqspec"},
    "exspec": {"align": "exspec", "schedule": "same-length"},
    "graphs": {"graphs": "on"},
}


@pytest.mark.wide(but=["mixed-mistral", "eqspec-opt"])
@PIECES
@pytest.mark.usefixtures("compiled", "no_writes")
@pytest.mark.parametrize("name", ["opt", "mistral", "gemma3"])
@pytest.mark.parametrize("way", sorted(ALIGNMENTS))
def test_pieces_that_write_are_exact(way: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains and prompts, one row and several, padding left out or not, rows that move: what is decoded is exact."""
    monkeypatch.setattr(padding_free, "LAYING_OUT", 0)
    check(zoo.build(name), **ALIGNMENTS[way])


@PIECES
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("drafter", ["none", "early-exit,layers=1", "window,sink=1,recent=3"])
def test_drafters_on_the_target_s_cache(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A self-drafter's modules write through methods of the store to which pieces write; its methods are its own from then on."""
    stores, made = list[SlabStore](), SlabStore.__init__

    def noted(self: SlabStore, *given: Any) -> None:
        made(self, *given)
        stores.append(self)

    monkeypatch.setattr(SlabStore, "__init__", noted)
    check(zoo.build("opt"), drafted=False, drafter=drafter, draft_length=3)
    assert stores
    assert not [one for one in stores if {"write", "expect", "view"} & {*vars(one)}]


@PIECES
@pytest.mark.usefixtures("compiled")
def test_a_view_of_other_slots_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store whose memory was written hands out the slots attended to, or the error names it."""
    view, told = SlabStore.view, r"KV backend 'slab' of .*: store.view\(\) must return a DenseView of \d+ slots"
    monkeypatch.setattr(SlabStore, "view", lambda *given: DenseView(*(one[:, :, 1:] for one in view(*given))))
    with pytest.raises(ContractError, match=told):
        check(zoo.build("opt"), drafted=False)


@PIECES
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("kv", ["paged", "pool", "slab,dtype=int8"])
def test_other_stores_write_themselves(kv: str) -> None:
    """Pieces for a store that moves, or that has keys and values in 8 bits, write nothing, in a process that has others as well."""
    target = zoo.build("opt")
    for store in ("slab", kv):
        pipes = [harness.pipeline(target, None, batch_size=3, kv=store, layers=how) for how in ("compiled", "eager")]
        found, eager = ([one.token_ids for one in pipe.decode(ASKED)] for pipe in pipes)
        assert found == eager


class HalfLinear(torch.nn.Linear):
    """Returns half precision, as a linear layer under autocast does."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the product in half precision."""
        return super().forward(states).bfloat16()


def test_values_of_another_precision() -> None:
    """Values that are not in the keys' precision are written in it."""
    model = zoo.build("opt", num_hidden_layers=1)
    attention = model.model.decoder.layers[0].self_attn
    attention.v_proj.__class__ = HalfLinear
    runner = runner_of(model)
    require_agreement(runner.tests, trace(runner, writes=True), False, False)
