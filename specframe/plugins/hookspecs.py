"""Every hook a plugin can implement.

Hooks only *register*: each is called once per process, when plugins are discovered, with ``register(name, factory)``, unless its
*Argument* is another. The factory is a plain class, or a reference to one, ``"package.module:Name"``, imported when it is first
used or listed, and makes objects of the protocol that the hook names. The class says what is known of it before it is made.

Each docstring follows one schema: purpose, *Argument*, *Must*, *Must not*.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pluggy

hookspec = pluggy.HookspecMarker("specframe")
hookimpl = pluggy.HookimplMarker("specframe")


Register = Callable[[str, Callable[..., Any] | str], None]
"""The argument of the hooks: ``register(name, factory)``."""

RegisterModels = Callable[..., None]
"""The argument of the hook of models: ``register(alias, location, target=None)``."""

RegisterDefaults = Callable[[str, str], None]
"""The argument of the hook of defaults: ``register(purpose, specification)``."""


@hookspec
def specframe_register_drafters(register: Register) -> None:
    """Offer drafters (:class:`specframe.contracts.roles.Drafter`): they decide which tokens to propose.

    Must: propose from its own state and the batch only; keep its cache over rounds.
    Must not: feed a sequence's prefix to its model again; write to the batch.
    """


@hookspec
def specframe_register_verifiers(register: Register) -> None:
    """Offer verifiers (:class:`specframe.contracts.roles.Verifier`): they decide how the target scores a draft.

    Must: return the target's scores after the last token and after every draft token: logits (B, N + 1, V).
    Must not: decide how many tokens are accepted.
    """


@hookspec
def specframe_register_acceptance_rules(register: Register) -> None:
    """Offer acceptance rules (:class:`specframe.contracts.roles.AcceptanceRule`): they accept a part of each draft.

    Must: accept on the device, every row on its own; give K + 1 tokens on full acceptance.
    Must not: synchronise host and device; claim ``lossless`` if the output distribution is not the target's.
    """


@hookspec
def specframe_register_alignments(register: Register) -> None:
    """Offer alignments (:class:`specframe.contracts.roles.Alignment`): they decide places, and what happens to rejected tokens.

    Must: derive positions from explicit state; list in ``needs`` the features needed of the KV backend.
    Must not: look for pad ids in tokens; reach into a KV backend's tensors.
    """


@hookspec
def specframe_register_schedulers(register: Register) -> None:
    """Offer schedulers (:class:`specframe.contracts.roles.Scheduler`): they decide which sequences form the next batch.

    Must: serve every sequence within a bounded number of rounds; return None only when nothing is waiting or live.
    Must not: mix sequences that need their prompt read with sequences that are decoding.
    """


@hookspec
def specframe_register_kv_backends(register: Register) -> None:
    """Offer KV backends (:class:`specframe.contracts.cache.KVBackend`): they decide how keys and values are stored.

    Must: list in ``offers`` the features of its stores; keep a sequence's keys and values until it has finished.
    Must not: interpret positions; allocate memory in each round if the layout is static.
    """


@hookspec
def specframe_register_draft_length_policies(register: Register) -> None:
    """Offer draft-length policies (:class:`specframe.contracts.roles.BudgetPolicy`): they decide how much to draft in a round.

    Must: return a budget up to its ``maximum``.
    Must not: change the tokens a lossless combination produces.
    """


@hookspec
def specframe_register_attention_backends(register: Register) -> None:
    """Offer attention backends (:class:`specframe.contracts.attention.AttentionBackend`): they attend to what a KV store hands out.

    Must: offer the views it reads, "dense" or "paged"; give what mask tensors give, up to rounding.
    Must not: synchronise host and device; keep keys and values from one forward for the next.
    """


@hookspec
def specframe_register_defaults(register: RegisterDefaults) -> None:
    """Offer defaults: they are the strategies, and the model, that are used where a user names none.

    Argument: ``register(purpose, specification)``; the purposes are those of :data:`specframe.plugins.entries.PURPOSES`, and the
    specification is a registered name, with or without options, as in ``"name,key=value"``.
    Must: register a strategy that is lossless, where the purpose does not say otherwise.
    Must not: register a default for a purpose that another installed plugin has one for: a user then has to name the strategy.
    """


@hookspec
def specframe_register_models(register: RegisterModels) -> None:
    """Offer model aliases and target/drafter pairs.

    Argument: ``register(alias, location, target=None)``; location is a directory or a hub id, ``target`` the alias of the
    target this model drafts for.
    Must: use an alias that no other plugin uses.
    Must not: load or look for the model.
    """


@hookspec
def specframe_register_checkpoints(register: Register) -> None:
    """Offer to recognise checkpoints that are no language models, so that ``--drafter DIR`` suffices for them.

    Argument: ``register(name, function)``; the function is given a location (a directory, or a hub id) and returns the drafter that
    runs the checkpoint there, as ``name,key=value``, or None where it does not know the checkpoint.
    Must: look at what is on disk only; leave alone whatever transformers reads as a causal language model.
    Must not: import torch; raise an error for a checkpoint that it cannot read.
    """


@hookspec
def specframe_register_observers(register: Register) -> None:
    """Offer observers: they watch a run, round by round.

    Argument: ``register(name, factory)``; the factory makes an :class:`specframe.contracts.roles.Observer`
    for each run.
    Must: return quickly; treat its arguments as read-only.
    Must not: synchronise host and device.
    """


@hookspec
def specframe_register_state_kinds(register: Register) -> None:
    """Offer kinds of state: they say how layers without keys and values are cropped to the accepted tokens.

    Argument: ``register(name, factory)``; the factory makes a :class:`specframe.contracts.states.StateKind`. One whose states can
    be had the same to the bit, for ``bitwise``, offers "bitwise", and is a :class:`specframe.contracts.states.BitwiseKind`.
    Must: leave no trace of a token that is not real, or not accepted; give the outputs that the model's own layer gives.
    Must not: claim a layer that another kind claims; synchronise host and device.
    """


@hookspec
def specframe_register_position_kinds(register: Register) -> None:
    """Offer kinds of counted positions (:class:`specframe.contracts.positions.PositionKind`): they know what such models do.

    Must: give each token, and its key, the position that it has in a row of its own.
    Must not: change a model; know one that another kind knows.
    """


@hookspec
def specframe_register_options(register: Register) -> None:
    """Offer what an option of a run asks for that the core does not have, by the option's name.

    Argument: ``register(name, factory)``, with the name of the option. For "bitwise" the factory makes a
    :class:`specframe.contracts.numerics.Numerics`, for "check" a :class:`specframe.contracts.roles.InvariantChecks`, which is
    made anew for every engine. That of "memory" is given the options and the parts of a run, and makes a
    :class:`specframe.contracts.engine.MemoryBound`. "load_options" is a function of the option's value, which
    returns keyword arguments of ``from_pretrained``; "layers" is given a model's runner and makes its
    :class:`specframe.contracts.model.Layers`; "graphs" makes a :class:`specframe.contracts.graphs.StoreGraphs`, "rounds"
    :class:`specframe.contracts.graphs.CapturedRounds`; "states" opens a :class:`specframe.contracts.states.RowStore` for layers,
    rows and a device. "assisted" and "accelerate" are called as the functions of :mod:`specframe.drop_in` are; "processors" warns
    of a user's own that cannot be called for one row alone, "watchdog" watches calls while a command runs.
    Must: refuse a model for which it does not work before anything is decoded with it.
    Must not: change a model, or the tokens that a greedy run gives.
    """


@hookspec
def specframe_register_executors(register: Register) -> None:
    """Offer executors: they decide in which processes the models run, and on which devices.

    Argument: ``register(name, factory)``; the factory makes an :class:`specframe.contracts.engine.Executor`. What else it can do it
    offers: one that decides how models are loaded is a :class:`specframe.contracts.engine.LoadingExecutor`, one of several
    processes that decode the same rows a :class:`specframe.contracts.engine.RankedExecutor`, one that runs models in other
    processes an :class:`specframe.contracts.engine.RemoteExecutor`.
    Must: return the same value from ``broadcast`` on every rank; give the tokens that the executor ``local`` gives.
    Must not: start a process or open a connection before a method of it is called.
    """


@hookspec
def specframe_register_constraints(register: Register) -> None:
    """Offer constraints (:class:`specframe.contracts.constraints.Constraint`): they decide which tokens may come next.

    Must: give the same masks for the same tokens, whatever the batch and the draft; allow a token after all tokens that it has
    allowed; give a mask also after draft tokens that it has not.
    Must not: change a state in ``masks``; keep anything of a sequence outside of its state.
    """


@hookspec
def specframe_register_commands(register: Register) -> None:
    """Offer subcommands of the ``specframe`` command.

    Argument: ``register(name, command)``; the command is a ``click.Command`` or a reference to one, which is imported when the
    command runs or the commands are listed. Commands are listed in the order in which they are registered. A name of two words,
    as "models check", is a command below "models".
    Must: raise a ``SpecframeError`` with one sentence on a user's mistake: it is printed, and the exit status is 2.
    Must not: import torch at module level; use the name of another command: neither command can be used then.
    """
