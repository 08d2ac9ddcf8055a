"""Options that models are loaded with: a quantisation config by name, and options of transformers' ``from_pretrained``.

They are written as a strategy is: ``bitsandbytes-4bit,bnb-4bit-quant-type=nf4``. The name is the quantisation; "none" goes before
options of a model whose weights stay as they are stored. In Python a mapping may be given instead, also with a config that was made
already: ``{"quantization_config": HqqConfig(nbits=4)}``.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from specframe.errors import OptionError, SpecframeError, UnknownNameError, literal, sentence
from specframe.plugins.registry import parse_specification

NAME, OBJECT = "quantization", "quantization_config"
"""Keys of a mapping: the quantisation by name, or as an object."""

NONE = "none"
"""The word for weights that stay as they are stored."""

LOADED = ("attn_implementation", "experts_implementation", "use_safetensors", "variant", "weights_only")
"""Options of ``from_pretrained`` that may be given. The others concern what specframe decides, as devices and dtypes, or the files
that the tokenizer is read from, too: the directory of a model says which."""

TORCHAO = "torchao"
"""The package whose quantisations have names of their own, :data:`TORCHAO` before the name of its config's class."""

FILES = "gguf"
"""A quantisation that is no option of a model, but the format of a file of its own."""

PRESET = {"bitsandbytes-4bit": {"load_in_4bit": True}, "bitsandbytes-8bit": {"load_in_8bit": True}}
"""What two names of one config's class mean."""


def keywords(given: Any) -> dict[str, Any]:
    """Return load options as keyword arguments of ``from_pretrained``, with a config of their own, which loading may change.

    Args:
        given: ``name,key=value,...``, a mapping, or None: no options.

    Raises:
        OptionError: the form is wrong, or a config does not accept its options, or needs a package that is not installed.
        UnknownNameError: there is no quantisation of that name, or neither it nor ``from_pretrained`` has an option of a name.
    """
    options = normal_options(given)
    name, made = options.pop(NAME, NONE), copy.deepcopy(options.pop(OBJECT, None))
    if not isinstance(name, str):
        raise OptionError(f"load_options: expected the name of a quantisation, got {literal(name)}")
    if made is not None and name != NONE:
        raise OptionError(f"load_options: expected {NAME} or {OBJECT}, got both")
    own = {key: options.pop(key) for key in [*options] if key not in LOADED}
    if name != NONE:
        made = config(name.replace("_", "-"), own)
    elif own:
        raise UnknownNameError("load option", next(iter(own)), LOADED)
    return options if made is None else options | {OBJECT: made}


def normal_options(given: Any) -> dict[str, Any]:
    """Return load options as a new mapping."""
    if given is None:
        return {}
    if isinstance(given, Mapping) and all(isinstance(key, str) for key in given):
        return dict(given)
    if not isinstance(given, str):
        raise OptionError(f"load_options: expected a quantisation as name,key=value or a mapping, got {literal(given)}")
    try:
        name, options = parse_specification(given)
    except OptionError as fault:
        raise OptionError(f"load_options: {fault}") from None
    return {**options, NAME: name}


def config(name: str, options: Mapping[str, Any]) -> Any:
    """Return the quantisation config of a name."""
    known = configs()
    if name not in known:
        if name.startswith(f"{TORCHAO}-") and importlib.util.find_spec(TORCHAO) is None:
            raise OptionError(
                f"load_options {name!r}: expected the package {TORCHAO}, which is not installed: pip install {TORCHAO}"
            )
        raise UnknownNameError("quantisation in load_options", name, [*known, NONE])
    made = known[name]
    parameters = inspect.signature(made).parameters.values()
    kinds = {one.name: str(one.annotation) for one in parameters if one.kind != one.VAR_KEYWORD}
    for key in options:
        if key not in kinds:
            raise UnknownNameError(f"option of the quantisation {name!r}", key, [*kinds, *LOADED])
    try:
        return made(**{key: listed_text(kinds[key], value) for key, value in options.items()}, **PRESET.get(name, {}))
    except SpecframeError:
        raise
    except Exception as error:  # each package raises errors of its own
        raise OptionError(f"load_options {name!r}: {sentence(error)}") from error


def listed_text(kind: str, value: Any) -> Any:
    """Return a list of one text where a list of texts is expected, which ``key=value`` cannot spell."""
    return [value] if isinstance(value, str) and re.search(r"\b[Ll]ist\b(\[str\])?( \||\]|$)", kind) else value


def configs() -> dict[str, Callable[..., Any]]:
    """Return the makers of quantisation configs by name: transformers' own, registered ones, and torchao's."""
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    known = {method.replace("_", "-"): made for method, made in AUTO_QUANTIZATION_CONFIG_MAPPING.items()}
    del known[FILES], known[TORCHAO]
    return known | torchao_configs()


def torchao_configs() -> dict[str, Callable[..., Any]]:
    """Return the makers of torchao's configs; those of its classes that need more than plain values are left to Python."""
    if importlib.util.find_spec(TORCHAO) is None:
        return {}
    quantization = importlib.import_module(f"{TORCHAO}.quantization")
    base = importlib.import_module(f"{TORCHAO}.core.config").AOBaseConfig
    classes = [one for one in vars(quantization).values() if inspect.isclass(one) and issubclass(one, base)]
    return {torchao_name(one): torchao_maker(one) for one in classes if one.__name__.endswith("Config")}


def torchao_name(made: type) -> str:
    """Return the name of a class of torchao: Int8WeightOnlyConfig is torchao-int8-weight-only."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", made.__name__.removesuffix("Config"))
    return f"{TORCHAO}-{words.lower()}"


def torchao_maker(kind: type) -> Callable[..., Any]:
    """Return a function that makes transformers' config for a class of torchao, from the options of both."""
    from transformers import TorchAoConfig

    whole = [one for one in inspect.signature(TorchAoConfig).parameters.values() if one.kind != one.VAR_KEYWORD][1:]
    names = [one.name for one in whole]
    parts = [*inspect.signature(kind).parameters.values(), *whole]

    def make(**options: Any) -> Any:
        outer = {key: options.pop(key) for key in [*options] if key in names}
        return TorchAoConfig(kind(**options), **outer)

    make.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parts]
    )
    return make
