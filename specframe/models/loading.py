"""Loading of models and tokenizers by alias, directory or hub id."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import torch
import transformers
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from specframe.devices import kinds
from specframe.errors import ModelError, OptionError, SpecframeWarning, literal, sentence
from specframe.models import hub
from specframe.models.aliases import resolve
from specframe.models.local import (
    CONFIG,
    GENERATION,
    VOCABULARIES,
    WEIGHTS,
    broken,
    holds,
    on_disk,
    require_model_folder,
)
from specframe.plugins.registry import registry

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def pick_device(name: str | torch.device) -> torch.device:
    """Return the device of that name; "auto" is CUDA where there is one."""
    return kinds.pick(str(name) if isinstance(name, str | torch.device) else literal(name))


def pick_dtype(name: str | torch.dtype, device: torch.device) -> torch.dtype:
    """Return the precision of that name; "auto" is the one of the device's kind: bfloat16 on CUDA, float32 on a CPU."""
    name = (str(name) if isinstance(name, str | torch.dtype) else literal(name)).removeprefix("torch.")
    if name == "auto":
        return kinds.of(device).dtype
    if name not in {*DTYPES, *DTYPES.values()}:
        raise OptionError(f"dtype {name!r}: expected one of auto, {', '.join([*DTYPES.values(), *DTYPES])}")
    return getattr(torch, DTYPES.get(name, name))


Load = Callable[[str, Any, Callable[..., PreTrainedModel]], PreTrainedModel]
"""Decides how a model is loaded, see :meth:`specframe.contracts.engine.LoadingExecutor.load`."""


def whole(role: str, config: Any, read: Callable[..., PreTrainedModel]) -> PreTrainedModel:
    """Load a model as it is."""
    return read()


def keywords(given: Any) -> dict[str, Any]:
    """Return load options as keyword arguments of ``from_pretrained``, as the plugin of the option ``load_options`` reads them."""
    return {} if given is None else registry().entry("option", "load_options").factory(given)


def load_model(
    name_or_model: str | os.PathLike[str] | PreTrainedModel,
    role: str,
    device: torch.device,
    dtype: torch.dtype,
    load: Load = whole,
    options: Mapping[str, Any] | None = None,
) -> PreTrainedModel:
    """Return a causal language model, ready for inference.

    Files on disk, the hub's cache included, are read without asking the hub. A loaded model is returned unchanged: its device
    and dtype are its owner's choice.

    Args:
        name_or_model: an alias, a directory, a hub id or a loaded model.
        role: "target" or "draft", for errors.
        device, dtype: device and dtype to load a named model with.
        load: decides how it is loaded.
        options: keyword arguments of ``from_pretrained`` for a named model, see :func:`keywords`.

    Raises:
        ModelError: the model cannot be found or read, or is not a causal language model.
    """
    if isinstance(name_or_model, PreTrainedModel):
        _require_language_model(name_or_model, role)
        return load(role, name_or_model.config, lambda **options: name_or_model)
    source = _source(role, name_or_model)
    config = _require_causal(source)
    given = dict(options or {})
    quantised = "quantization_config" in given or getattr(config, "quantization_config", None) is not None
    return load(
        role, config, lambda **own: _read(source, device, dtype, given | (own or _places(device, quantised)), quantised)
    )


def _places(device: torch.device, quantised: bool) -> dict[str, Any]:
    """Return the options that have quantised weights made where they are used: many kinds cannot be moved."""
    return {"device_map": {"": device}} if quantised and device.type != "cpu" else {}


def _read(
    source: _Source, device: torch.device, dtype: torch.dtype, options: dict[str, Any], quantised: bool
) -> PreTrainedModel:
    """Return a named model on a device."""
    # the sentence below names what does not fit; transformers would print a table
    options = {"dtype": dtype, "output_loading_info": True, "ignore_mismatched_sizes": True, **options}
    model, info = source.read("weights", AutoModelForCausalLM, WEIGHTS, **options)
    if unfit := sorted(info["mismatched_keys"]):
        name, there, expected = unfit[0]
        more = f", and {len(unfit) - 1} others do not fit either" if len(unfit) > 1 else ""
        raise ModelError(
            f"the weights of {source} cannot be read: {name!r} has shape {tuple(there)}, where its configuration says "
            f"{tuple(expected)}{more}"
        )
    if unused := sorted(info["unexpected_keys"]):
        warnings.warn(
            f"the weights of {source} hold {len(unused)} tensors that the model does not have, the first {unused[0]!r}: "
            "they are not used",
            SpecframeWarning,
            stacklevel=2,
        )
    if missing := sorted(info["missing_keys"]):
        raise ModelError(f"the weights of {source} lack {len(missing)} tensors of the model, the first {missing[0]!r}")
    if quantised and model.device.type == device.type:
        return model
    try:
        return model.to(device)  # from_pretrained has put it into eval mode
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{source} cannot be moved to {device}: {sentence(error)}") from error


def load_tokenizer(name_or_model: str | os.PathLike[str] | object) -> PreTrainedTokenizerBase | None:
    """Return a model's tokenizer, or None for a loaded model without a tokenizer in the folder it was loaded from.

    Raises:
        ModelError: a named model's tokenizer cannot be found or read.
    """
    if isinstance(name_or_model, str | os.PathLike):
        return _source("model", name_or_model).read("tokenizer", AutoTokenizer, VOCABULARIES)
    if not isinstance(name_or_model, PreTrainedModel):
        return None
    origin = name_or_model.name_or_path or ""
    found = holds(on_disk(origin), VOCABULARIES)
    return _Source("model", origin, origin).read("tokenizer", AutoTokenizer, VOCABULARIES) if found else None


def stop_token_ids(model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase | None) -> frozenset[int]:
    """Return the stop token ids, the same ids that ``generate`` stops at.

    They are taken from the first of these that has any: the generation config, the model's configuration, the language model's
    configuration, the tokenizer. A model that is none of transformers has none of its own.
    """
    owners: list[Any] = [tokenizer]
    if isinstance(model, PreTrainedModel):
        owners = [getattr(model, "generation_config", None), model.config, model.config.get_text_config(), tokenizer]
    found = (getattr(owner, "eos_token_id", None) for owner in owners)
    ids: Any = next((ids for ids in found if ids is not None), [])
    return frozenset(int(token_id) for token_id in (ids if isinstance(ids, list | tuple) else [ids]))


@attrs.frozen
class _Source:
    """A model on disk or on the hub. ``str()`` gives its name for error messages."""

    role: str
    name: str
    location: str

    def __str__(self) -> str:
        return f"{self.role} {self.name!r}" + (f" ({self.location})" if self.location != self.name else "")

    def read(self, part: str, factory: Any, files: tuple[str, ...], **options: Any) -> Any:
        """Return ``factory.from_pretrained`` of a part stored in any of ``files``; every error is one sentence."""
        try:
            with silent():
                return self._read(factory, files, local_files_only=True, trust_remote_code=False, **options)
        except ModelError:
            raise
        except Exception as error:  # the type of transformers' error depends on the file
            why = broken(on_disk(self.location)) or sentence(error)
            raise ModelError(f"the {part} of {self} cannot be read: {why}{self._hint(files)}") from error

    def _read(self, factory: Any, files: tuple[str, ...], **options: Any) -> Any:
        """Read from disk; ask the hub only for missing files, since its client retries for 23 s without a network."""
        present, is_folder = holds(on_disk(self.location), files), os.path.isdir(self.location)
        if is_folder and not present:
            raise FileNotFoundError(f"expected one of {', '.join(files)} in the directory, got none")
        try:
            if present:  # without vocabulary files, transformers would make an empty tokenizer
                return factory.from_pretrained(self.location, **options)
        except OSError:
            if is_folder:
                raise
        self._require_hub()
        return factory.from_pretrained(self.location, **options | {"local_files_only": False})

    def _hint(self, files: tuple[str, ...]) -> str:
        """Name the packages that a ``tokenizer.model`` needs; transformers' error may name another package."""
        folder = on_disk(self.location)
        older = files == VOCABULARIES and holds(folder, ("*.model",)) and not holds(folder, ("tokenizer.json",))
        return " (a tokenizer.model needs the packages sentencepiece and protobuf)" if older else ""

    def _require_hub(self) -> None:
        """Raise :class:`ModelError` unless the hub confirms that it has this model."""
        fault = hub.fault(self.location)
        if fault is None:
            return
        unknown = isinstance(fault, RepositoryNotFoundError | HFValidationError)
        why = "has no public model of that id" if unknown else f"is out of reach ({sentence(fault)})"
        alias = self.name if self.name != self.location else "ALIAS"
        raise ModelError(
            f"{self} is not on disk, or not all of it, and the hub {why}: pass the directory of a local copy, or name "
            f"that once with `specframe models add {alias} PATH`"
        ) from fault


def read_config(name: str | os.PathLike[str], role: str) -> Any:
    """Return a named model's configuration, without its weights.

    Raises:
        ModelError: it cannot be found or read, or is not that of a causal language model.
    """
    return _require_causal(_source(role, name))


def _source(role: str, name: str | os.PathLike[str]) -> _Source:
    if not isinstance(name, str | os.PathLike):
        expected = "expected an alias, a directory, a hub id or a loaded transformers model"
        raise ModelError(f"the {role} is a {type(name).__name__}: {expected}")
    return _Source(role, os.fspath(name), resolve(os.fspath(name)))


def _require_causal(source: _Source) -> Any:
    """Return a model's configuration.

    Models unknown to ``AutoModelForCausalLM`` are refused, and encoders, which it knows but which cannot decode.
    """
    require_model_folder(str(source), source.location)
    if why := broken(on_disk(source.location), GENERATION):  # transformers would go on as if there were none
        raise ModelError(f"the {GENERATION} of {source} cannot be read: {why}")
    config = source.read("configuration", AutoConfig, CONFIG)
    kind = (getattr(config, "architectures", None) or [type(config).__name__])[0]
    if config.is_encoder_decoder or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or "MaskedLM" in kind:
        raise ModelError(f"{source} is a {kind}: expected a causal language model")
    return config


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keep transformers from printing what it remarks on files: the caller reports what is wrong with them."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


def _require_language_model(model: PreTrainedModel, role: str) -> None:
    """Refuse loaded models of other kinds: base models, classifiers, image models, encoder-decoder models."""
    if model.config.is_encoder_decoder or not model.can_generate():
        kind = (
            "an encoder-decoder model"
            if model.config.is_encoder_decoder
            else "a model without a language modelling head"
        )
        raise ModelError(f"the {role} is a {type(model).__name__}, {kind}: expected a causal language model")


def unwrap_model(given: Any, role: str) -> Any:
    """Return the transformers model inside a wrapper of torch.compile or PEFT; return anything else unchanged.

    Adapters inside a model's layers, such as LoRA, stay active.

    Raises:
        ModelError: the PEFT adapter adds learned keys or embeddings before the tokens, which lie outside the model's layers.
    """
    if not isinstance(given, torch.nn.Module):
        return given
    wrapper: Any = given
    if isinstance(inner := getattr(wrapper, "_orig_mod", None), torch.nn.Module):
        return unwrap_model(inner, role)
    if not (hasattr(wrapper, "peft_config") and hasattr(wrapper, "get_base_model")):
        return given
    added = wrapper.active_peft_config
    if added.is_prompt_learning:
        kind = getattr(added.peft_type, "value", added.peft_type)
        raise ModelError(
            f"the {role} is a {type(wrapper).__name__} of type {kind}, with learned keys or embeddings before its tokens: expected "
            "adapters in its layers, as LoRA has"
        )
    return unwrap_model(wrapper.get_base_model(), role)
