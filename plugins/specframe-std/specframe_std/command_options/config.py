"""Options from a TOML file: at its top for all commands, in a section for one command."""

from __future__ import annotations

import tomllib
from typing import Any

import click

from specframe.cli.option_types import CONFIG, ValueType
from specframe.errors import OptionError, UnknownNameError
from specframe.files import contents, decode_text


def read_config(ctx: click.Context, param: click.Parameter, paths: tuple[str, ...]) -> None:
    """Use a TOML file's values as defaults of the command's options; values in the command's section win."""
    if not paths:
        return
    if len(paths) > 1:
        raise OptionError(f"--config: expected one file, got {' and '.join(paths)}")
    path, held = paths[0], load_toml(paths[0])
    known = {option.name: option for option in options_of(ctx.command)}
    group = ctx.parent.command if ctx.parent else None
    commands = group.list_commands(ctx) if isinstance(group, click.Group) else [str(ctx.command.name)]
    sections = {name: value for name, value in held.items() if isinstance(value, dict)}
    if wrong := next((name for name in sections if name not in commands), None):
        raise UnknownNameError(f"section in {path}", wrong, commands)
    common = {key: value for key, value in held.items() if key not in sections}
    taken: dict[str, Any] = {}
    for entries in (common, sections.get(str(ctx.command.name), {})):
        found: dict[str, Any] = {}
        for key, value in entries.items():
            name = key.replace("-", "_")
            if name not in known:
                raise unknown_key(ctx, path, key, [str(other).replace("_", "-") for other in known])
            if name in found:
                raise OptionError(f"{path}: {key} is given twice: expected one value")
            found[name] = option_value(f"{path}: {key}", value, known[name])
        taken |= found
    ctx.meta[CONFIG] = path
    ctx.default_map = {**(ctx.default_map or {}), **taken}


def options_of(command: click.Command) -> list[click.Option]:
    """Return the options of a command that a file may hold."""
    return [one for one in command.params if isinstance(one, click.Option) and one.name not in ("config", "help")]


def unknown_key(ctx: click.Context, path: str, key: str, known: list[str]) -> OptionError | UnknownNameError:
    """Return the error for a key that is no option of the command; it names the commands with this option."""
    from specframe.cli import cli

    others = [
        name
        for name in cli.list_commands(ctx)
        if (command := cli.get_command(ctx, name))
        and key.replace("-", "_") in [one.name for one in options_of(command)]
    ]
    if others:
        where = " or ".join(f"[{name}]" for name in others)
        return OptionError(f"{path}: {key} is no option of {ctx.command.name}: expected it in a section {where}")
    return UnknownNameError(f"option in {path}", key, known)


def option_value(place: str, value: Any, option: click.Option) -> Any:
    """Return a value in the option's form: a list for an option of several values, true or false for a flag."""
    several = option.multiple or (isinstance(option.type, ValueType) and option.type.several)
    parts = value if isinstance(value, list) and several else [value]
    kind = bool if option.is_flag else (str, int, float)
    if not all(isinstance(part, kind) and isinstance(part, bool) == option.is_flag for part in parts):
        expected = "true or false" if option.is_flag else "a text or a number"
        got = next((part for part in parts if not isinstance(part, str | int | float)), parts[0])
        several_too = ", or a list of them" if several else ""
        raise OptionError(f"{place}: expected {expected}{several_too}, got {type_name(got)}")
    return parts if option.multiple else value


def type_name(value: Any) -> str:
    """Return the type of a TOML value in words, or true and false as they are."""
    if isinstance(value, bool):
        return str(value).lower()
    return {str: "a text", int: "a number", float: "a number"}.get(type(value), f"a {type(value).__name__}")


def load_toml(path: str) -> dict[str, Any]:
    """Return the content of a TOML file."""
    try:
        return tomllib.loads(decode_text(contents(path)).replace("\r\n", "\n"))
    except OSError as error:
        raise OptionError(f"--config: {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, or not TOML
        raise OptionError(f"--config: {path} is not TOML: {error}") from error
