"""A model's forward traced to straight code: pieces of operators between the calls of attention and of layers with states.

A twin's forward is run once on tensors without numbers, whose sizes are symbols, and what it computes is written down. Cut at
attention, and with weights as arguments, the code of equal layers is equal, so it is held once: a first piece with the
embedding, one for all layers of a kind, and a last one with the head. Pieces take no mask, no slot and no cache: these are the
business of attention, which is called between them. So one trace serves all KV stores, alignments and attention backends.

Tensor names carry their shape: B rows, T tokens fed per row, K tokens whose logits are asked for, S slots attended to.
"""

from __future__ import annotations

import contextlib
import logging
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import attrs
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from specframe.errors import ModelError, sentence
from specframe.model.decoder_layers import Forwards
from specframe.model.twin import (
    CURRENT,
    CurrentForward,
    redirect,
    running,
)
from specframe_std.layers.direct_writes import write_directly
from specframe_std.layers.merged_weights import Merged, merge, tensor_of
from specframe_std.layers.operators import (
    CALLS,
    KEPT,
    ROWS,
    SLOTS,
    WIDTH,
    ExpertsTraced,
    TracedCache,
    join,
    traced_attention,
    update_and_attend,
)
from specframe_std.layers.pieces import ATEN, Piece, function, quick, simplify, spelled
from specframe_std.layers.state_calls import STATE, StateCall, StateCalls
from specframe_std.layers.state_pieces import state_graphs
from specframe_std.layers.traceable import put_back, untraceable

if TYPE_CHECKING:
    from specframe.model.runner import ModelRunner


Place = tuple[dict[str, Any], str]
"""Where a model holds a parameter or a buffer: the dictionary of a module, and its name there. What is put there later is taken."""


@attrs.define(eq=False)
class TracedForward:
    """A model's forward as pieces."""

    pieces: list[Piece]
    """Each distinct one."""
    weights: list[Place]
    """The first place of each."""
    tied: list[list[Place]]
    """The places of each weight that has several."""
    constants: list[torch.Tensor]
    """Tensors that the forward made of numbers, and buffers of merged weights."""
    calls: torch.fx.GraphModule
    """The calls of pieces and of attention, of what a forward is given, of weights and of constants."""
    hidden: tuple[int, ...] = ()
    """The numbers of the hidden states that it gives."""
    states: list[StateCall] = attrs.Factory(list)
    """The calls of layers with states."""
    merged: list[Merged] = attrs.Factory(list)
    """The weights that it reads together."""
    written: tuple[int, ...] = ()
    """The layers whose keys and values its pieces write, in a :class:`specframe.contracts.cache.DirectStore`."""
    padding_free: bool = True
    """Whether it can be fed the tokens of all rows in one: no piece reads the keys that a cache returns, which are by row."""
    reads: frozenset[int] = frozenset()
    """The places of what pieces read themselves among the indices of tokens in slots and the masks: else attention alone does."""
    compiled: bool = False
    """Whether its pieces are compiled."""
    tried: bool = False
    """Whether that was tried."""
    looks: int = 0
    """How often it was asked whether its pieces are compiled by now."""

    def take(self, code: Mapping[str, Callable[..., Any]]) -> None:
        """Run the compiled code of the pieces from now on, by their texts."""
        texts = {piece.run: piece.text for piece in self.pieces}
        for node in self.calls.graph.nodes:
            if node.target in texts:
                node.target = function(code[texts[node.target]])
        for one in self.states:
            one.run = code.get(one.text)
        self.calls.recompile()
        self.compiled = True

    def leave_states(self) -> bool:
        """Have layers with states called as they are, each of which was a piece; return whether there was any."""
        pieces = [one for one in self.states if one.run is not None]
        for one in pieces:
            one.run = None
        return bool(pieces)

    @property
    def holds(self) -> bool:
        """Whether the weights that were tied are, and those that were merged lie together."""
        for (holder, name), *others in self.tied:
            if any(one[other] is not holder[name] for one, other in others):
                return False
        return all(one.holds for one in self.merged)

    def serves(self, padding_free: bool, masks: bool) -> bool:
        """Return whether it can be fed the tokens of all rows in one, (1, N), or attention that takes no masks."""
        return (self.padding_free or not padding_free) and (masks or not self.reads)

    def __call__(self, *given: torch.Tensor) -> list[torch.Tensor]:
        """Return the logits, and the hidden states that the forward was traced with.

        Args:
            given: ids (B, T), positions (B, T), the index of the token in each slot (B, S), the numbers of the tokens whose logits
                are asked for (K,), and the mask of each kind of layer.
        """
        weights = [holder[name] for holder, name in self.weights]
        plain = [*given]
        for place in (0, 1, 3):  # the only strides that are compiled for
            plain[place] = given[place].contiguous()
        for place in self.reads:  # one row may stand for all
            plain[place] = given[place].expand(len(given[0]), *given[place].shape[1:]).contiguous()
        memory = CURRENT.get().cache.memory(self.written) if self.written else ()
        found: list[torch.Tensor] = self.calls.forward(*plain, *memory, *weights, *self.constants)
        return found


def trace(
    model: ModelRunner, hidden: tuple[int, ...] = (), merges: bool = False, writes: bool = False
) -> TracedForward:
    """Return a model's forward as pieces.

    Args:
        model: the model, whose layers attend by our function.
        hidden: the numbers of the hidden states that are taken.
        merges: whether linear layers that read the same tensor are merged, see :mod:`specframe_std.layers.merged_weights`.
        writes: whether pieces write keys and values, see :mod:`specframe_std.layers.direct_writes`.

    Raises:
        ModelError: the forward cannot be traced, with the reason.
    """
    if why := untraceable(model):
        raise ModelError(why)
    replaced = {
        *(model.taps.placed(hidden, {})[0] if hidden else ()),
        *(one.module for one in model.state_layers.values()),
    }
    for module in replaced:
        redirect(module, "forward")  # as every forward does that takes hidden states, or has states
    before = [(one, dict(vars(one)), dict(one._buffers), dict(one._parameters)) for one in model.twin.modules()]
    calls = StateCalls(model.state_layers, model.device)
    try:
        graph = _graph(model, hidden, calls)
        of_states = [*state_graphs(calls.made, calls.layers, model.device)]
    except ModelError:
        raise
    except Exception as error:  # whatever a model, or a trace of it, raises
        raise ModelError(
            f"its forward cannot be traced, since it raises {type(error).__name__} ({sentence(error)})"
        ) from error
    finally:
        changed = [type(one).__name__ for one, *held in before if not put_back(one, *held)]
    if changed:
        raise ModelError(f"its forward changes {changed[0]} itself")
    simplify(graph)
    join(graph)
    graphs = [graph, *(own for _, own in of_states)] if merges else []
    merged = [found for one in graphs for found in merge(one)]
    written = write_directly(graph) if writes else ()
    return _Cutter(graph, model.twin, hidden, calls).cut(merged, written, of_states)


def _graph(model: ModelRunner, hidden: tuple[int, ...], calls: StateCalls) -> torch.fx.GraphModule:
    """Return what a model computes, with attention and each layer with states as one operator.

    Raises:
        ModelError: it computes something else for other sizes.
    """
    sizes = ShapeEnv()
    mode = FakeTensorMode(shape_env=sizes, allow_non_fake_inputs=True)
    kinds = [*model.windows]

    def sized(*shape: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
        open_sizes: Any = StatelessSymbolicContext(
            [DimDynamic.STATIC if size == 1 else DimDynamic.DUCK for size in shape]
        )
        return mode.from_tensor(torch.zeros(shape, dtype=dtype, device=model.device), symbolic_context=open_sizes)

    def forward(ids_BT: Any, positions_BT: Any, key_index_BS: Any, kept_K: Any, *masks: Any) -> list[torch.Tensor]:
        slots, found = key_index_BS.shape[1], dict[int, torch.Tensor]()
        told = model.counts.told(positions_BT, key_index_BS, slots)
        replaced: Forwards = {**told.forwards, **of_states}
        if hidden:
            replaced, found = model.taps.placed(hidden, replaced)
        cache = TracedCache(key_index_BS, told.lengths)
        with (
            ExpertsTraced(),
            running(CurrentForward(None, cache, replaced, told.functions, attention=traced_attention)),
        ):
            shown = model.per_kind(dict(zip(kinds, masks, strict=True)))
            logits = model.twin(**model.inputs(ids_BT, positions_BT, shown, cache, kept_K)).logits
        return [logits, *(found[number] for number in hidden)]

    masks = [sized(ROWS, 1, WIDTH, SLOTS, dtype=model.dtype) for _ in kinds]
    given = (sized(ROWS, WIDTH), sized(ROWS, WIDTH), sized(ROWS, SLOTS), sized(KEPT), *masks)
    # as pre-dispatch operators, a linear layer is one; outside of inference mode, whose tensors cannot be made fake
    with torch.inference_mode(False), torch.no_grad(), calls.tracing() as of_states, mode, unlogged():
        graph = make_fx(forward, pre_dispatch=True, _allow_non_fake_inputs=True)(*given)
    if sizes.guards:
        raise ModelError("what it computes depends on how many tokens are fed or held")
    return graph


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Keep torch inside the block from logging the errors of a trace, which end in one sentence."""
    loggers = [
        logging.getLogger(name) for name in ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
    ]
    before = [one.disabled for one in loggers]
    for one in loggers:
        one.disabled = True
    try:
        yield
    finally:
        for one, was in zip(loggers, before, strict=True):
            one.disabled = was


JOINED = frozenset({update_and_attend})
BREAKS = JOINED | {*CALLS, STATE}
"""What is called between pieces."""


def is_size(node: torch.fx.Node) -> bool:
    """Return whether a node is a size of what a forward is given."""
    return node.target is ATEN.sym_size.int and cast("torch.fx.Node", node.args[0]).op == "placeholder"


class _Cutter:
    """Cuts a graph at attention into pieces, each distinct one of which is held once."""

    def __init__(
        self, module: torch.fx.GraphModule, model: torch.nn.Module, hidden: tuple[int, ...], calls: StateCalls
    ) -> None:
        self._module, self._hidden, self._pieces, self._state_calls = module, hidden, dict[str, int](), calls
        self._made: list[Piece] = []
        self._tied: list[list[Place]] = []
        """The places of weights of layers with states that have several."""
        self._calls = torch.fx.Graph()
        self._values: dict[torch.fx.Node, torch.fx.Node] = {}
        """The node among the calls that has the value of one of the graph."""
        self._holders: dict[int, list[Place]] = {}
        for part in model.modules():
            for held in (part._parameters, part._buffers):
                for name, tensor in held.items():
                    self._holders.setdefault(id(tensor), []).append((held, name))

    def cut(
        self,
        merged: list[Merged],
        written: tuple[int, ...],
        of_states: list[tuple[StateCall, torch.fx.GraphModule]],
    ) -> TracedForward:
        """Return the pieces of the graph, which write the keys and values of these layers, and those of layers with states.

        Raises:
            ModelError: no layer keeps keys, values or a state.
        """
        nodes = list(self._module.graph.nodes)
        given = [node for node in nodes if node.op == "placeholder"]
        operators = [node for node in nodes if node.op == "call_function"]
        if not any(node.target in BREAKS for node in operators):
            raise ModelError("its layers pass no keys and values to a cache")
        own = given[: -1 - 2 * len(written)] if written else given
        reads = frozenset(
            place
            for place, node in enumerate(own)
            if place not in (0, 1, 3) and not all(user.target in BREAKS or is_size(user) for user in node.users)
        )
        weights, constants, places = self._held(self._module)
        for number, node in enumerate((*given, *weights, *constants)):
            self._values[node] = self._calls.placeholder(f"given{number}")
        piece = list[torch.fx.Node]()
        for node in operators:
            if node.target in BREAKS:
                self._piece(piece)
                piece = []
                self._call(node, self._called(node))
            elif node.target is operator.getitem and node.args[0].target in BREAKS:
                self._call(node, operator.getitem)
            elif is_size(node):
                self._call(node, torch.Tensor.size)
            else:
                piece.append(node)
        self._piece(piece)
        self._calls.output([self._values[node] for node in nodes[-1].args[0]])
        for call, graph in of_states:
            self._take(call, graph)
        return TracedForward(
            self._made,
            [held[0] for held in places],
            [*self._tied, *(held for held in places if len(held) > 1)],
            [tensor_of(self._module, node) for node in constants],
            torch.fx.GraphModule(torch.nn.Module(), self._calls),
            self._hidden,
            [*self._state_calls.made.values()],
            merged,
            written,
            padding_free=not reads and all(node.target not in BREAKS - JOINED for node in operators),
            reads=reads,
        )

    def _called(self, node: Any) -> Callable[..., Any]:
        """Return what computes an operator between pieces."""
        if node.target is STATE:
            return function(self._state_calls.made[node.args[2]])
        found: Callable[..., Any] = CALLS.get(node.target, node.target)
        return found

    def _call(self, node: torch.fx.Node, called: Callable[..., Any]) -> None:
        """Add a call between pieces."""
        self._values[node] = self._calls.call_function(
            called, torch.fx.node.map_arg(node.args, self._values.__getitem__)
        )

    def _held(self, module: torch.fx.GraphModule) -> tuple[list[torch.fx.Node], list[torch.fx.Node], list[list[Place]]]:
        """Return the only node of each weight that a graph reads, and of each other tensor that is no argument; and the places of
        the weights."""
        held = dict[int, torch.fx.Node]()
        for node in module.graph.nodes:
            if node.op == "get_attr" and (first := held.setdefault(id(tensor_of(module, node)), node)) is not node:
                node.replace_all_uses_with(first)
        weights = {number: node for number, node in held.items() if number in self._holders}
        constants = [node for number, node in held.items() if number not in weights]
        return [*weights.values()], constants, [self._holders[number] for number in weights]

    def _take(self, call: StateCall, module: torch.fx.GraphModule) -> None:
        """Have the call of a module with states compute this graph as a piece."""
        weights, constants, places = self._held(module)
        nodes = list(module.graph.nodes)
        call.weights, call.constants = [one[0] for one in places], [tensor_of(module, node) for node in constants]
        given = [node for node in nodes if node.op == "placeholder"]
        operators = [node for node in nodes if node.op == "call_function"]
        made = self._made_of(operators, [*given, *weights, *constants], nodes[-1].args[0])
        call.text, call.run = made.text, made.run
        self._tied += [one for one in places if len(one) > 1]

    def _piece(self, nodes: list[torch.fx.Node]) -> None:
        """Add the call of a piece."""
        if not nodes:
            return
        mine = set(nodes)
        reads = [*dict.fromkeys(one for node in nodes for one in node.all_input_nodes if one not in mine)]
        outputs = [node for node in nodes if any(user not in mine for user in node.users)]
        made = self._made_of(nodes, reads, outputs)
        call = self._calls.call_function(made.run, tuple(self._values[one] for one in reads))
        for place, node in enumerate(outputs):
            self._values[node] = self._calls.call_function(operator.getitem, (call, place))

    def _made_of(self, nodes: list[torch.fx.Node], reads: list[torch.fx.Node], outputs: list[torch.fx.Node]) -> Piece:
        """Return the piece of these nodes, which is held once."""
        graph, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
        for one in reads:
            copies[one] = graph.placeholder(f"a{len(copies)}")
            copies[one].meta["val"] = one.meta["val"]
        for node in nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta = {"val": node.meta.get("val")}
        graph.output(tuple(copies[node] for node in outputs))
        number = self._pieces.setdefault(text := spelled(graph), len(self._made))
        if number == len(self._made):
            module, fast = (torch.fx.GraphModule(torch.nn.Module(), one) for one in (graph, quick(graph)))
            self._made.append(Piece(module, function(fast.forward), text))
        return self._made[number]
