"""Facts of a strategy: docstring, traits and options, read from source text, so that listing strategies does not import torch.

A strategy registered by reference is read from its module's source, and its base classes from theirs. If the source is not enough
(a computed default, a decorator that writes the constructor), the module is imported.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import click

TRAITS = ("needs", "offers", "scheduler", "kv")
"""Class attributes shown in listings besides a strategy's docstring."""

REQUIRED = inspect.Parameter.empty
"""Marks an option without a default."""


@attrs.frozen
class Facts:
    """A strategy's docstring, traits and options, from its class."""

    origin: str
    """Place of the class, ``module:name``."""
    documentation: str
    traits: Mapping[str, Any]
    """Values of the :data:`TRAITS` in the class; values that depend on options are missing."""
    options: Mapping[str, Any]
    """Options with their defaults; :data:`REQUIRED`: an option without a default."""
    open: bool = False
    """Whether it takes options of any name."""

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return self.documentation.partition("\n")[0]

    def able(self, trait: str) -> frozenset[str]:
        """Return ``needs`` or ``offers``; an empty set if the trait is no set of words."""
        given = self.traits.get(trait, ())
        return frozenset(filter(is_text, given)) if isinstance(given, frozenset | set | list | tuple) else frozenset()


def is_text(value: Any) -> bool:
    """Return whether a value is a string."""
    return isinstance(value, str)


def of_object(factory: Callable[..., Any]) -> Facts:
    """Return the facts of an imported class, function or command."""
    where, text = (factory.callback, factory.help) if isinstance(factory, click.Command) else (factory, factory.__doc__)
    any_name, variadic = (
        inspect.Parameter.VAR_KEYWORD,
        (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD),
    )
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):  # some built-in callables have no signature
        parameters = [inspect.Parameter("options", any_name)]
    found = {trait: getattr(factory, trait, None) for trait in TRAITS}
    plain = bool | str | frozenset | set | list | tuple
    return Facts(
        f"{getattr(where, '__module__', '?')}:{getattr(where, '__qualname__', '?')}",
        inspect.cleandoc(text or ""),
        {trait: value for trait, value in found.items() if isinstance(value, plain)},
        {one.name: one.default for one in parameters if one.kind not in variadic},
        any(one.kind == any_name for one in parameters),
    )


def of_reference(reference: str) -> Facts | None:
    """Return the facts of the class at ``"package.module:Name"``; None if its source is not enough."""
    module, _, name = reference.partition(":")
    try:
        return _Source(module, name).facts()
    except _UnreadableError:
        return None


class _UnreadableError(Exception):
    """The source text is not enough to read the facts."""


def _tree(module: str) -> ast.Module:
    """Return a module's syntax tree. Only its parent packages are imported."""
    try:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            raise _UnreadableError(module)
        source = Path(spec.origin)
        written = source.stat()
        return _parsed(source, written.st_mtime_ns, written.st_size)
    except (ImportError, AttributeError, OSError, SyntaxError, ValueError) as error:
        raise _UnreadableError(module) from error


@functools.lru_cache(maxsize=512)  # more modules than the strategies of many plugins have
def _parsed(source: Path, written: int, size: int) -> ast.Module:
    """Return the syntax tree of a file, by its moment of writing and its size: a file that has changed is parsed again."""
    return ast.parse(source.read_bytes())


class _Source:
    """The source text of a class."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._tree = module, _tree(module)
        self._class = self._only(name)
        if self._class.decorator_list or self._class.keywords:
            raise _UnreadableError(name)

    def facts(self) -> Facts:
        """Return the facts of the class."""
        lineage = list(self._lineage())
        traits: dict[str, Any] = {}
        for one in lineage:
            traits = one._traits() | traits
        makers = ((one, given) for one in lineage if (given := one._maker()))
        maker, given = next(makers, (self, ast.arguments([], [], None, [], [], None, [])))
        return Facts(
            f"{self._module}:{self._class.name}",
            inspect.cleandoc(ast.get_docstring(self._class) or ""),
            {trait: value for trait, value in traits.items() if value is not None},
            maker._options(given),
            given.kwarg is not None,
        )

    def _only(self, name: str) -> ast.ClassDef:
        """Return the one class of that name at the module's top."""
        bound = [node for node in self._tree.body if name in _bound(node)]
        if len(bound) != 1 or not isinstance(bound[0], ast.ClassDef):
            raise _UnreadableError(name)
        return bound[0]

    def _lineage(self) -> Iterator[_Source]:
        """Yield the class and its base classes, nearest first. Multiple inheritance is not read from source."""
        yield self
        named = [base.id if isinstance(base, ast.Name) else None for base in self._class.bases]
        if named in ([], ["object"]):
            return
        if len(named) > 1 or named[0] is None:
            raise _UnreadableError(self._class.name)
        yield from self._base(named[0])._lineage()

    def _base(self, name: str) -> _Source:
        """Return a base that this module has, or imports by ``from ... import``."""
        for node in self._tree.body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if name == (alias.asname or alias.name):
                        return _Source(self._absolute(node), alias.name)
        return _Source(self._module, name)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self._module.split(".")[: -node.level]
        return ".".join([*package, *([node.module] if node.module else [])])

    def _traits(self) -> dict[str, Any]:
        """Return the traits in the class's body; None for a trait that is no plain value, such as a property."""
        found: dict[str, Any] = {}
        for node in self._class.body:
            for trait in _bound(node) & {*TRAITS}:
                found[trait] = None if isinstance(node, ast.FunctionDef) else _assigned(node)
        return found

    def _maker(self) -> ast.arguments | None:
        """Return the arguments of the constructor in the class's body, None where there is none."""
        makers = [node for node in self._class.body if _bound(node) & {"__init__", "__new__"}]
        if not makers:
            return None
        if len(makers) > 1 or not isinstance(makers[0], ast.FunctionDef) or makers[0].decorator_list:
            raise _UnreadableError(self._class.name)
        return makers[0].args

    def _options(self, given: ast.arguments) -> dict[str, Any]:
        """Return the options of a constructor."""
        positional = [*given.posonlyargs, *given.args][1:]
        nodes = [*[None] * (len(positional) - len(given.defaults)), *given.defaults, *given.kw_defaults]
        names = [one.arg for one in [*positional, *given.kwonlyargs]]
        return {name: self._default(node) if node else REQUIRED for name, node in zip(names, nodes, strict=True)}

    def _default(self, node: ast.expr) -> Any:
        """Return a default, which may be a constant of the module."""
        if isinstance(node, ast.Name):
            bound = [one for one in self._tree.body if node.id in _bound(one)]
            return _assigned(bound[0]) if len(bound) == 1 else _literal(None)
        return _literal(node)


def _bound(node: ast.stmt) -> set[str]:
    """Return the names that a statement binds, also in imports and branches, so that a name bound twice is noticed."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    if isinstance(node, ast.AnnAssign) and node.value is None:
        return set()
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


def _assigned(node: ast.stmt) -> Any:
    """Return the value of an assignment to one name."""
    one = isinstance(node, ast.AnnAssign) or (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name))
    return _literal(node.value if one and isinstance(node, ast.Assign | ast.AnnAssign) else None)


def _literal(node: ast.expr | None) -> Any:
    """Return a literal's value, ``frozenset({...})`` among them."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "frozenset"
        and not node.keywords
    ):
        return frozenset(_literal(node.args[0])) if node.args else frozenset()
    try:
        return ast.literal_eval(node)  # type: ignore[arg-type]
    except (TypeError, ValueError, SyntaxError) as error:
        raise _UnreadableError(ast.dump(node) if node else "no value") from error
