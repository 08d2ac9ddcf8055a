"""Write what is generated of the documentation, each part from the code it describes.

docs/hooks.md    from the hook specifications and the protocols
docs/cli.md      from the commands
docs/strategies.md  its tables of strategies and their options, from what the plugins of this repository register
docs/heads.md    its tables of options, likewise
docs/plugins.md  the files of its example, from what ``specframe plugins new`` writes
docs/roles.md    its table of roles, from the protocols
docs/capabilities.md  its table of larger protocols, from these
docs/design.md   its table of distributions, from the project files; its pictures of the cache, from recordings of the
                 embedded pair: docs/cache_pictures.py
docs/works-with.md  its tables, from the code that refuses a run: docs/works_with.py
docs/images/     the pictures of a round, from the code of one, and of a benchmark's results: docs/pictures.py

python docs/generate.py            write it
python docs/generate.py --check    write nothing; name the files that are not up to date and exit with status 1
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click

# the pages describe this repository, whatever else is installed
os.environ["SPECFRAME_PLUGINS"] = "std,bitwise,heads,lab,memory,serve,testing,tiny"

sys.path.append(str(Path(__file__).parent))  # where another program imports this module

import cache_pictures
import pictures
import works_with
from specframe_testing.scaffold.package import files

from specframe.cli import cli
from specframe.contracts import cache
from specframe.plugins import hookspecs
from specframe.plugins.entries import ROLES
from specframe.plugins.protocols import OFFERED, PROTOCOLS, members_of
from specframe.plugins.registry import discover
from specframe.plugins.traits import OPTIONS as OPTIONS_OF_CLASS
from specframe.plugins.traits import REQUIRED

ROOT = Path(__file__).parent.parent
PROJECTS = (ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml")))
HEADING = "<!-- Written by docs/generate.py from {source}: change it there. -->\n"
WIDTH = 100
REFERENCE = re.compile(r":class:`([\w.]+)\.(\w+)`")
STRATEGIES = re.compile(r"(<!-- strategies: .*?-->\n).*(<!-- end of strategies -->)", flags=re.DOTALL)
ROLE_TABLE = re.compile(r"(<!-- roles: .*?-->\n).*(<!-- end of roles -->)", flags=re.DOTALL)
LARGER = re.compile(r"(<!-- larger protocols: .*?-->\n).*(<!-- end of larger protocols -->)", flags=re.DOTALL)
STORES = {"pooled": cache.PooledStore, "bounded": cache.BoundedStore, "prefix": cache.PrefixStore}
"""The larger protocols of stores, by the capability that their backends offer."""
OPTION_TABLES = re.compile(
    r"(<!-- options of ([^:\n]+) ([\w-]+): .*?-->\n).*?(<!-- end of options of \2 \3 -->)", flags=re.DOTALL
)
OPTION = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", flags=re.MULTILINE)
"""An option of a docstring's section on options: its name and its meaning."""
DISTRIBUTIONS = re.compile(r"(<!-- distributions: .*?-->\n).*(<!-- end of distributions -->)", flags=re.DOTALL)
PICTURES = re.compile(r"(<!-- pictures: .*?-->\n).*(<!-- end of pictures -->)", flags=re.DOTALL)
EXAMPLE = re.compile(r"(```\w+\n# ([\w./]+)\n).*?(```\n)", flags=re.DOTALL)
"""A code block that is a file of the example: its first line names the file."""
PROMISING = ("acceptance rule", "alignment")
"""The roles that the output's being the target's own depends on."""
LABEL = re.compile(r"^(Argument|Must|Must not): ", flags=re.MULTILINE)

OPTIONS = """
## Where options come from

The command line goes before the environment, the environment before the file of `--config`, and that before the default. A
value that cannot be is one sentence that names its place, and exit status 2.

**Environment.** The variable of an option is `SPECFRAME_`, the command and the option in capitals, with `_` for `-`:
`SPECFRAME_RUN_BATCH_SIZE=4` is `--batch-size 4` of `run`, `SPECFRAME_RUN_CHECK=true` is `--check`. Lists are comma lists, as on
the command line. `--stop` has no variable. Two variables are no options: `SPECFRAME_PLUGINS` narrows [which plugins are
loaded](plugins.md), and `SPECFRAME_HOME` is the folder of your own names for models, `~/.config/specframe` when it is not set.
A warning names the variable that a misspelt one is like.

**A file.** `--config FILE.toml` takes options from a file. Its top is for every command that reads the file, and
has only options of each; a section is for the command of its name, and wins. Where an option of a grid takes several values, a
list and a comma list mean the same:

```toml
batch-size = 4
seed = 7

[run]
stop = ["\\n\\n", "def "]

[compare]
align = ["ragged", "eqspec", "masking,positions=content"]
batch-size = [1, 4, 8]
```

**A list** on the command line is split at commas, and a part with `=` is an option of the name before it:
`ragged,masking,positions=content` is `ragged` and `masking,positions=content`.
"""

COMPLETION = """
## Completion

The shell completes commands, options and values: strategies, drafters and names of models, those of plugins too, the last name
of a comma list, words such as those of `--dtype`, and files. For bash, in `~/.bashrc`; for zsh, in `~/.zshrc`; for fish:

```text
eval "$(_SPECFRAME_COMPLETE=bash_source specframe)"
eval "$(_SPECFRAME_COMPLETE=zsh_source specframe)"
_SPECFRAME_COMPLETE=fish_source specframe > ~/.config/fish/completions/specframe.fish
```
"""


def hooks() -> str:
    """Return hooks.md: every hook's docstring, and the protocol of what is registered through it."""
    specs = [spec for name, spec in vars(hookspecs).items() if name.startswith("specframe_register_")]
    parts = ["# Hooks", plain(hookspecs.__doc__ or "").partition("\n\n")[2].rpartition("\n\n")[0]]
    for spec in specs:
        text = inspect.getdoc(spec) or ""
        parts += [f"## {spec.__name__}", f"`{signature(spec)}`", bulleted(plain(text))]
        parts += [fenced(module, name) for module, name in REFERENCE.findall(text)]
    parts += ["## What every role in a round has in common", fenced("specframe.contracts.roles", "Strategy")]
    parts += [
        "## What alignments and KV backends make",
        fenced("specframe.contracts.roles", "Layout"),
        fenced("specframe.contracts.cache", "KVStore"),
        "## What attention backends are asked, read and make",
        fenced("specframe.contracts.attention", "AttentionFacts"),
        fenced("specframe.contracts.cache", "DenseView"),
        fenced("specframe.contracts.cache", "PagedView"),
        fenced("specframe.contracts.attention", "Attend"),
        "## What constraints are asked about",
        fenced("specframe.contracts.constraints", "Drafted"),
        "## What drafters learn of a round",
        fenced("specframe.contracts.reports", "Outcome"),
        "## Larger protocols",
        "What offers one of [these capabilities](capabilities.md#larger-protocols) has the members of its larger protocol.",
    ]
    parts += [fenced(one.__module__, one.__name__) for _, _, one in larger()]
    return page("specframe/plugins/hookspecs.py and specframe/contracts/", parts)


def fenced(module: str, name: str) -> str:
    """Return the source of a class as a code block, which documents and is not run."""
    return f"```py\n{inspect.getsource(getattr(importlib.import_module(module), name))}```"


def larger() -> list[tuple[str, str, type]]:
    """Return the capabilities with a larger protocol: kind, capability and protocol."""
    offered = [(kind, word, one) for kind, words in OFFERED.items() for word, one in words.items()]
    return [*offered, *(("KV backend", word, one) for word, one in STORES.items())]


def member(protocol: type, name: str) -> str:
    """Return a member of a protocol as a page shows it."""
    one = next((vars(base)[name] for base in protocol.__mro__ if name in vars(base)), None)
    if not inspect.isfunction(one):
        return f"`{name}`"
    parameters = [parameter for parameter in inspect.signature(one).parameters if parameter != "self"]
    returned = one.__annotations__.get("return", "None").replace(" | None", "` or `None")
    return f"`{name}({', '.join(parameters)})`" + ("" if returned == "None" else f" → `{returned}`")


def roles_page() -> str:
    """Return roles.md with its table of roles: the protocol of each, its members and its suite."""
    rows = ["| role | protocol | what it does | members | suite |", "| --- | --- | --- | --- | --- |"]
    common = {"needs", "offers", "start"}
    for role in ROLES:
        protocol = PROTOCOLS[role]
        own = ", ".join(
            f"[{member(protocol, name)}]" if name == "observe" else member(protocol, name)  # it alone has a default
            for name in members_of(protocol)
            if name not in common
        )
        suite = "".join(word[0].upper() + word[1:] for word in re.split(r"[ -]", role)) + "Suite"
        rows.append(f"| {role} | `{protocol.__name__}` | {purpose(protocol)} | {own} | `{suite}` |")
    return ROLE_TABLE.sub(lambda found: found[1] + "\n".join(rows) + "\n" + found[2], current("docs/roles.md"))


def capabilities_page() -> str:
    """Return capabilities.md with its table of the capabilities with a larger protocol."""
    rows = ["| capability | offered by | protocol | what it is | further members |", "| --- | --- | --- | --- | --- |"]
    for kind, word, protocol in larger():
        base = protocol.__mro__[1]
        own = ", ".join(member(protocol, name) for name in members_of(protocol) if name not in members_of(base))
        rows.append(f"| `{word}` | {kind} | `{protocol.__name__}` | {purpose(protocol)} | {own} |")
    return LARGER.sub(lambda found: found[1] + "\n".join(rows) + "\n" + found[2], current("docs/capabilities.md"))


def purpose(protocol: type) -> str:
    """Return the first sentence of a protocol's docstring."""
    return re.split(r"(?<=\.) ", " ".join(plain(protocol.__doc__ or "").split()))[0]


def signature(function: Callable[..., None]) -> str:
    """Return a hook's name and parameters."""
    return function.__name__ + str(inspect.signature(function)).partition(" ->")[0].replace("'", "")


def plain(text: str) -> str:
    """Return a docstring's markup as Markdown."""
    text = re.sub(r":\w+:`(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    return text.replace("``", "`").strip()


def bulleted(text: str) -> str:
    """Return a hook's docstring with the parts of its schema as a list."""
    purpose, _, schema = text.partition("\n\n")
    return f"{purpose}\n\n" + LABEL.sub(r"- **\1:** ", schema).replace("\n", "\n  ").replace("\n  - **", "\n- **")


def commands() -> str:
    """Return cli.md: the help of every command, as a terminal shows it."""
    parts = ["# The command line", OPTIONS, COMPLETION, "## Commands", "What `--help` says of each of them."]
    group = click.Context(cli, info_name="specframe", terminal_width=WIDTH, max_content_width=WIDTH)
    for context in walk(group, children_of(group)):
        parts += [f"### {context.command_path}", f"```text\n{context.get_help()}\n```"]
    return page("the commands in specframe/cli and the plugins", parts)


def walk(context: click.Context, children: Mapping[str, click.Command]) -> Iterator[click.Context]:
    """Yield the context of a command and of every command below it."""
    yield context
    for name, command in children.items():
        below = click.Context(command, info_name=name, parent=context)
        yield from walk(below, children_of(below))


def children_of(context: click.Context) -> dict[str, click.Command]:
    """Return the commands below a command, those of plugins too, by name."""
    group = context.command
    names = group.list_commands(context) if isinstance(group, click.Group) else []
    return {name: command for name in names if (command := group.get_command(context, name))}


def strategies_page() -> str:
    """Return strategies.md with its table of strategies, by role and name."""
    registry = discover()
    rows = ["| role | name | what it does | lossless |", "| --- | --- | --- | --- |"]
    for role in ROLES:
        for name in registry.names(role):
            factory = registry.entry(role, name).factory
            says = ("yes" if "lossless" in factory.offers else "no") if role in PROMISING else ""
            rows.append(f"| {role} | `{name}` | {plain(factory.__doc__ or '').partition(chr(10))[0]} | {says} |")
    text = STRATEGIES.sub(lambda found: found[1] + "\n".join(rows) + "\n" + found[2], current("docs/strategies.md"))
    return with_options(text)


def with_options(text: str) -> str:
    """Return a page with its tables of strategies' options."""
    return OPTION_TABLES.sub(lambda found: found[1] + option_table(found[2], found[3]) + found[4], text)


def option_table(role: str, name: str) -> str:
    """Return a strategy's options as a table, from its class's docstring and the defaults of its arguments."""
    traits = discover().entry(role, name).traits
    rows = ["| option | default | meaning |", "| --- | --- | --- |"]
    for option, meaning in OPTION.findall(traits.documentation.partition(OPTIONS_OF_CLASS)[2]):
        default = traits.options.get(option)
        shown = "" if default in (None, REQUIRED) else f"`{default}`" if isinstance(default, str) else f"{default:g}"
        said = re.sub(r'"([\w-]+)"', r"`\1`", plain(" ".join(meaning.split())))
        cells = (cell.replace("|", "\\|") for cell in (f"`{option}`", shown, said))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def plugins_page() -> str:
    """Return plugins.md with the files of its example as a new package has them."""
    written = files("repeat", "drafter")
    return EXAMPLE.sub(lambda block: f"{block[1]}{written[block[2]].lstrip()}{block[3]}", current("docs/plugins.md"))


def design_page() -> str:
    """Return design.md with the distributions as their project files describe them, and pictures of the cache."""
    rows = ["| distribution | content |", "| --- | --- |"]
    for path in PROJECTS:
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        rows.append(f"| `{project['name']}` | {project['description']} |")
    table = "\n".join(rows) + "\n"
    text = DISTRIBUTIONS.sub(lambda found: found[1] + table + found[2], current("docs/design.md"))
    return PICTURES.sub(lambda found: found[1] + cache_pictures.pictures() + found[2], text)


def page(origin: str, parts: list[str]) -> str:
    """Return a page's text."""
    return HEADING.format(source=origin) + "\n" + "\n\n".join(part.strip() for part in parts) + "\n"


FILES: dict[str, Callable[[], str]] = {
    "docs/hooks.md": hooks,
    "docs/cli.md": commands,
    "docs/design.md": design_page,
    "docs/plugins.md": plugins_page,
    "docs/roles.md": roles_page,
    "docs/capabilities.md": capabilities_page,
    "docs/works-with.md": lambda: works_with.fill(current("docs/works-with.md")),
    "docs/strategies.md": strategies_page,
    "docs/heads.md": lambda: with_options(current("docs/heads.md")),
    **{f"docs/images/round-{theme}.svg": functools.partial(pictures.draw, theme) for theme in pictures.COLOURS},
    **{
        f"docs/images/following-{theme}.svg": functools.partial(pictures.following, theme) for theme in pictures.COLOURS
    },
}


def main(arguments: list[str]) -> int:
    """Write the files, or check them, and return the exit status."""
    if arguments not in ([], ["--check"]):
        print(f"expected --check or nothing, got {' '.join(arguments)}", file=sys.stderr)
        return 2
    stale = {name: text for name, make in FILES.items() if current(name) != (text := make())}
    if "--check" in arguments:
        for name in stale:
            print(f"{name} is not up to date: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for name, text in stale.items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(text, encoding="utf-8")
        print(f"wrote {name}")
    return 0


def current(name: str) -> str:
    """Return a file's present text; nothing when there is none."""
    path = ROOT / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
