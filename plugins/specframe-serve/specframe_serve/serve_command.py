"""``specframe serve``: an OpenAI-compatible server."""

from __future__ import annotations

import ipaddress
import socket
import warnings
from typing import Any

import click
from click.core import ParameterSource
from specframe_std.command_options.name_checks import check_names
from specframe_std.command_options.options import pipeline_options, whole
from specframe_std.executors.command_ranks import ranks_of

from specframe.cli.option_types import Number, TextType, WholeNumber
from specframe.errors import OptionError, SpecframeWarning

LARGEST_PORT = 65535
GRACE = 5.0
"""Seconds that requests under way have after SIGTERM. `docker stop` kills after 10: room is left for the end itself."""
SAMPLING_RULE = "gumbel"
"""The acceptance rule: a request's tokens depend on its prompt and its seed alone, whatever else is in the batch."""


@click.command()
@pipeline_options
@click.option(
    "--host", metavar="H", type=TextType(), default="127.0.0.1", show_default=True, help="Address to listen at."
)
@click.option(
    "--port", metavar="P", type=WholeNumber(0, LARGEST_PORT), default=8000, show_default=True, help="0: any free port."
)
@click.option(
    "--served-model-name",
    metavar="NAME",
    type=TextType(),
    help="Name of the model in requests [default: the target's].",
)
@click.option("--api-key", metavar="KEY", type=TextType(), help="Ask for this key; also from SPECFRAME_SERVE_API_KEY.")
@whole("--max-waiting", "Sequences that may wait for a row; more are answered with 429.", 256, least=0)
@whole("--max-body-bytes", "Largest body of a request.", 1 << 20)
@whole("--max-prompt-tokens", "Longest prompt [default: what the context has room for].")
@whole("--max-new-tokens", "Most new tokens that a sequence of a request may ask for.", 4096)
@whole("--max-request-tokens", "Most tokens of a request: prompts and new ones, in all its sequences.", 1 << 18)
@click.option(
    "--grace",
    metavar="SECONDS",
    type=Number(0),
    default=GRACE,
    show_default=True,
    help="Seconds that requests under way have to end after SIGTERM or Ctrl-C; then they end with an error.",
)
@click.pass_context
def serve(
    ctx: click.Context,
    host: str,
    port: int,
    served_model_name: str | None,
    api_key: str | None,
    max_waiting: int,
    max_body_bytes: int,
    max_prompt_tokens: int | None,
    max_new_tokens: int,
    max_request_tokens: int,
    grace: float,
    **options: Any,
) -> None:
    """Answer OpenAI's requests for completions from one engine, and show live acceptance at /.

    Requests join the batch between rounds. The server is for looking at speculation online; it is no rival of production servers.
    It listens at localhost alone unless --host says otherwise, and asks for no key unless --api-key is given.
    """
    check_names(options)
    limits = (max_body_bytes, max_prompt_tokens, max_new_tokens, max_request_tokens, max_waiting)
    bound = listening(host, port)
    with bound:
        warn_of_open_door(bound.getsockname()[0], api_key)
        chosen = ctx.get_parameter_source("seed") is not ParameterSource.DEFAULT
        run(bound, served_model_name, api_key, limits, grace, options, options["seed"] if chosen else None)


def listening(host: str, port: int) -> socket.socket:
    """Return a socket at the address; raise :class:`OptionError` where it cannot be had."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, proto)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise OptionError(
            f"--host and --port: expected an address to listen at, got {host}:{port} ({error.strerror})"
        ) from None
    return bound


def warn_of_open_door(address: str, key: str | None) -> None:
    """Warn where other machines can ask the server, and no key is asked for."""
    if key is None and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        warnings.warn(
            f"listening at {address} without --api-key: whoever reaches this machine may ask for completions",
            SpecframeWarning,
            stacklevel=2,
        )


def run(
    bound: socket.socket,
    name: str | None,
    key: str | None,
    limits: tuple[Any, ...],
    grace: float,
    options: dict[str, Any],
    seed: int | None,
) -> None:
    """Load the models and serve until interrupted; ``seed``: the one that was asked for."""
    from specframe import Pipeline
    from specframe_serve.app import Limited, Server
    from specframe_serve.listener import Listener

    if ranks_of(options["executor"]).several:
        raise OptionError(f"executor: expected one of one process, to which clients speak, got {options['executor']!r}")
    if options["accept"] == "auto":
        options["accept"] = SAMPLING_RULE
    pipe = Pipeline(**options)
    server = Server(pipe, name or called(options), Limited(*limits), key, seed)
    host, port = bound.getsockname()[:2]
    click.echo(f"serving at http://{f'[{host}]' if ':' in host else host}:{port}", err=True)
    Listener(server, grace).run(sockets=[bound])


def called(options: dict[str, Any]) -> str:
    """Return the name of the target as it was asked for."""
    from specframe.models.pairs import choose

    target, *_ = choose(options["target"], options["drafter"])
    return str(target)
