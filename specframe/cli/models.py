"""``specframe models``: names for models."""

from __future__ import annotations

from typing import Any

import click

from specframe.cli.tables import show_table


@click.group()
def models() -> None:
    """List the names of models, add one, show one."""


@models.command("list")
def list_() -> None:
    """List every alias: where it points, what it drafts for, and whether it is on disk."""
    from specframe.aliases import known_aliases

    rows = [(row.alias, row.state, row.target or "", row.distribution, row.location) for row in known_aliases()]
    show_table(("alias", "state", "drafts for", "offered by", "location"), rows)


@models.command()
@click.argument("alias")
@click.argument("path")
def add(alias: str, path: str) -> None:
    """Name the model in directory PATH; the name then works for --target and --drafter."""
    from specframe.aliases import add_alias, resolve

    add_alias(alias, path)
    click.echo(f"{alias} is {resolve(alias)}")


@models.command()
@click.argument("name")
def show(name: str) -> None:
    """Show where a model is, what pairs with it, and its shape if it is on disk."""
    from specframe.aliases import known_aliases, resolve

    location, known = resolve(name), known_aliases()
    facts = {"location": location}
    for row in known:
        if row.alias == name:
            facts |= {"state": row.state, "offered by": row.distribution, "drafts for": row.target or ""}
    facts["drafted for by"] = ", ".join(row.alias for row in known if row.target == name)
    rows = [(fact, value) for fact, value in (facts | shape(location)).items() if value]
    show_table(("name", name), rows)


def shape(location: str) -> dict[str, str]:
    """Return what a model's configuration on disk says of its size; nothing when it is not on disk."""
    from transformers import AutoConfig

    try:
        config: Any = AutoConfig.from_pretrained(location, local_files_only=True)
    except (OSError, ValueError):
        return {}
    text = config.get_text_config()
    figures = {
        "layers": "num_hidden_layers",
        "hidden size": "hidden_size",
        "vocabulary": "vocab_size",
        "context": "max_position_embeddings",
    }
    known = {name: getattr(text, attribute, None) for name, attribute in figures.items()}
    return {"architecture": ", ".join(config.architectures or [])} | {k: f"{v:,}" for k, v in known.items() if v}
