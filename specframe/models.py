"""Models by alias, directory or hub id: where they are, how they are loaded, and which fit each other."""

from __future__ import annotations

import contextlib
import json
import os
import re
import textwrap
import threading
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from specframe.errors import ModelError, OptionError, UnknownNameError
from specframe.plugins import registry

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HOME_VARIABLE = "SPECFRAME_HOME"
"""Environment variable: the folder of the user's ``models.toml``; ``~/.config/specframe`` when it is not set."""

HUB_SECONDS = 10
"""How long the hub may take to answer before a model that is not on disk counts as out of reach."""

VOCABULARY_SLACK = 256
"""How many entries two vocabularies may differ by: the padding of an embedding, or tokens added to one of them."""

CONFIG, WEIGHTS = ("config.json",), ("*.safetensors", "*.bin")
VOCABULARIES = ("tokenizer.json", "tekken.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken")
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class AliasRow(NamedTuple):
    """One alias as ``specframe models list`` shows it; ``state`` is "local", "cached" or "not on disk"."""

    alias: str
    location: str
    target: str | None
    distribution: str
    state: str


def resolve(name: str) -> str:
    """Return the directory or hub id that a name stands for; raise :class:`UnknownNameError` when it stands for none.

    An alias wins over a directory of the same name (``./name`` is the directory); a name with a ``/`` is returned as it
    is, save for a leading ``~``.
    """
    if "/" in name:
        return os.path.expanduser(name)
    known = {alias: model.location for alias, model in registry().models.items()} | user_aliases()
    if name not in known and not os.path.isdir(name):
        raise UnknownNameError("model", name, known)
    return known.get(name, name)


def paired_target(alias: str) -> str | None:
    """Return the alias of the target that an alias drafts for, or None."""
    model = registry().models.get(alias)
    return model.target if model else None


def aliases() -> list[AliasRow]:
    """Return every alias, sorted; the user's own have the distribution "you" and hide those of plugins."""
    offered = {alias: (model.location, model.distribution) for alias, model in registry().models.items()}
    known = offered | {alias: (location, "you") for alias, location in user_aliases().items()}
    return [
        AliasRow(alias, location, paired_target(alias), distribution, _state(location))
        for alias, (location, distribution) in sorted(known.items())
    ]


def user_aliases() -> dict[str, str]:
    """Return the user's own aliases and their locations; raise :class:`ModelError` when their file is broken."""
    try:
        pairs = tomllib.loads(_aliases_file().read_text(encoding="utf-8")).get("models", {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"the aliases in {_aliases_file()} cannot be read: {_reason(error)}") from error
    if not isinstance(pairs, dict) or not all(isinstance(location, str) for location in pairs.values()):
        raise ModelError(f'the aliases in {_aliases_file()}: expected only lines of alias = "path" under [models]')
    return {alias: os.path.expanduser(location) for alias, location in pairs.items()}


def add_alias(alias: str, path: str | os.PathLike[str]) -> None:
    """Name a model's directory in the user's file; raise :class:`ModelError` for a bad name or directory."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", alias):
        raise ModelError(f"alias {alias!r}: expected letters, digits, '.', '_' and '-', the first a letter or digit")
    if alias == "auto" or alias in registry().names("drafter"):
        raise ModelError(f"alias {alias!r} already means a drafter: expected another name")
    folder = Path(path).expanduser().resolve()
    if not _holds(folder, CONFIG):
        raise ModelError(f"alias {alias!r}: expected a model's directory, with a config.json, got {str(path)!r}")
    pairs = sorted((user_aliases() | {alias: str(folder)}).items())
    lines = [" = ".join(json.dumps(text, ensure_ascii=False) for text in pair) for pair in pairs]
    try:
        _aliases_file().parent.mkdir(parents=True, exist_ok=True)
        _aliases_file().write_text("\n".join(["[models]", *lines, ""]), encoding="utf-8")
    except OSError as error:
        raise ModelError(f"the aliases in {_aliases_file()} cannot be written: {_reason(error)}") from error


def _aliases_file() -> Path:
    return Path(os.environ.get(HOME_VARIABLE) or "~/.config/specframe").expanduser() / "models.toml"


def pick_device(name: str | torch.device) -> torch.device:
    """Return the device of that name; "auto" is CUDA where there is one."""
    name = str(name)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise OptionError(f"device {name!r}: expected auto, cpu, cuda or cuda:N")
    device, count = torch.device(name), torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise OptionError(f"device {name!r} is not there: expected one of this machine's {count} CUDA devices, or cpu")
    return device


def pick_dtype(name: str | torch.dtype, device: torch.device) -> torch.dtype:
    """Return the precision of that name; "auto" is bfloat16 on CUDA and float32 elsewhere."""
    name = str(name).removeprefix("torch.")
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in {*DTYPES, *DTYPES.values()}:
        raise OptionError(f"dtype {name!r}: expected one of auto, {', '.join([*DTYPES.values(), *DTYPES])}")
    return getattr(torch, DTYPES.get(name, name))


def load_model(
    name_or_model: str | os.PathLike[str] | PreTrainedModel, role: str, device: torch.device, dtype: torch.dtype
) -> PreTrainedModel:
    """Return a causal language model, ready for inference.

    What is on disk, hub cache included, is read without asking the hub. A loaded model is returned as it is: where it
    is and in what precision is its owner's choice.

    Args:
        name_or_model: an alias, a directory, a hub id or a loaded model.
        role: "target" or "draft", for errors.
        device, dtype: where and in what precision a model is loaded.

    Raises:
        ModelError: the model cannot be found or read, or is not a causal language model.
    """
    if isinstance(name_or_model, PreTrainedModel):
        return name_or_model
    source = _source(role, name_or_model)
    _require_causal(source)
    model, info = source.read("weights", AutoModelForCausalLM, WEIGHTS, dtype=dtype, output_loading_info=True)
    if missing := sorted(info["missing_keys"]):
        raise ModelError(f"the weights of {source} lack {len(missing)} tensors of the model, the first {missing[0]!r}")
    try:
        return model.to(device)  # from_pretrained has put it into eval mode
    except RuntimeError as error:
        raise ModelError(f"{source} cannot be moved to {device}: {_reason(error)}") from error


def load_tokenizer(name_or_model: str | os.PathLike[str] | PreTrainedModel) -> PreTrainedTokenizerBase | None:
    """Return a model's tokenizer; None for a loaded model whose tokenizer is not on disk where the model came from.

    Raises:
        ModelError: a named model's tokenizer cannot be found or read.
    """
    if not isinstance(name_or_model, PreTrainedModel):
        return _source("model", name_or_model).read("tokenizer", AutoTokenizer, VOCABULARIES)
    origin = name_or_model.name_or_path or ""
    found = _holds(_on_disk(origin), VOCABULARIES)
    return _Source("model", origin, origin).read("tokenizer", AutoTokenizer, VOCABULARIES) if found else None


def stop_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> frozenset[int]:
    """Return the ids that end a sequence: those of the generation settings, the configuration and the tokenizer."""
    owners = (getattr(model, "generation_config", None), model.config, model.config.get_text_config(), tokenizer)
    found = (getattr(owner, "eos_token_id", None) for owner in owners)
    lists = [ids if isinstance(ids, list | tuple) else [ids] for ids in found if ids is not None]
    return frozenset(int(token_id) for ids in lists for token_id in ids)


def check_vocabularies(
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    target_tokenizer: PreTrainedTokenizerBase | None,
    draft_tokenizer: PreTrainedTokenizerBase | None,
) -> None:
    """Refuse a draft model whose token ids do not mean what they mean to the target.

    With both tokenizers, whatever the embeddings' sizes: an id known to both is the same token, a token known to both
    has the same id, and at most :data:`VOCABULARY_SLACK` tokens are known to one alone (special tokens that a later
    release added). Without, the embeddings' sizes may differ by as much (padding).

    Raises:
        ModelError: the vocabularies differ; where tokens are known, with the first that does and its ids.
    """
    if target_tokenizer is not None and draft_tokenizer is not None:
        _compare_tokens(target_tokenizer.get_vocab(), draft_tokenizer.get_vocab())
        return
    target, draft = (model.config.get_text_config().vocab_size for model in (target_model, draft_model))
    if abs(target - draft) > VOCABULARY_SLACK:
        expected = f"expected sizes at most {VOCABULARY_SLACK} apart"
        raise ModelError(f"the vocabularies differ: {target} ids in the target and {draft} in the draft, {expected}")


def _compare_tokens(target: dict[str, int], draft: dict[str, int]) -> None:
    ids = target | draft | target  # the target's tokens first, and its ids where they differ
    shared = set(target.values()) & set(draft.values())
    added = {token for token in target.keys() ^ draft.keys() if ids[token] not in shared}
    allowed = added if len(added) <= VOCABULARY_SLACK else set()
    wrong = [token for token in ids if target.get(token) != draft.get(token) and token not in allowed]
    if wrong:
        first = min(wrong, key=ids.__getitem__)
        ours, theirs = target.get(first, "none"), draft.get(first, "none")
        raise ModelError(
            f"the vocabularies differ in {len(wrong)} tokens: the first, {first!r}, has id {ours} in the target and "
            f"{theirs} in the draft"
        )


@attrs.frozen
class _Source:
    """A model on disk or on the hub; as text, what errors call it."""

    role: str
    name: str
    location: str

    def __str__(self) -> str:
        return f"{self.role} {self.name!r}" + (f" ({self.location})" if self.location != self.name else "")

    def read(self, part: str, factory: Any, files: tuple[str, ...], **options: Any) -> Any:
        """Return ``factory.from_pretrained`` of a part that is in any of ``files``; every error is one sentence."""
        try:
            return self._read(factory, files, local_files_only=True, trust_remote_code=False, **options)
        except ModelError:
            raise
        except Exception as error:  # what transformers raises on a broken file depends on the file
            raise ModelError(f"the {part} of {self} cannot be read: {_reason(error)}{self._hint(files)}") from error

    def _read(self, factory: Any, files: tuple[str, ...], **options: Any) -> Any:
        """Read from disk, and ask the hub only for what is not there: its client retries for 23 s without a network."""
        present, is_folder = _holds(_on_disk(self.location), files), os.path.isdir(self.location)
        if is_folder and not present:
            raise FileNotFoundError(f"expected one of {', '.join(files)} in the directory, got none")
        try:
            if present:  # from a model's files without its vocabulary, transformers makes an empty tokenizer
                return factory.from_pretrained(self.location, **options)
        except OSError:
            if is_folder:
                raise
        self._require_hub()
        return factory.from_pretrained(self.location, **options | {"local_files_only": False})

    def _hint(self, files: tuple[str, ...]) -> str:
        """Name the packages that a tokenizer of the older kind takes; transformers' error may name another."""
        folder = _on_disk(self.location)
        older = files == VOCABULARIES and _holds(folder, ("*.model",)) and not _holds(folder, ("tokenizer.json",))
        return " (a tokenizer.model takes the packages sentencepiece and protobuf)" if older else ""

    def _require_hub(self) -> None:
        """Raise :class:`ModelError` unless the hub says soon that it has this model."""
        fault = _ask_hub(self.location)
        if fault is None:
            return
        unknown = isinstance(fault, RepositoryNotFoundError | HFValidationError)
        why = "has no public model of that id" if unknown else f"is out of reach ({_reason(fault)})"
        alias = self.name if self.name != self.location else "ALIAS"
        raise ModelError(
            f"{self} is not on disk, or not all of it, and the hub {why}: pass the directory of a local copy, or name "
            f"that once with `specframe models add {alias} PATH`"
        ) from fault


def _source(role: str, name: str | os.PathLike[str]) -> _Source:
    if not isinstance(name, str | os.PathLike):
        expected = "expected an alias, a directory, a hub id or a loaded transformers model"
        raise ModelError(f"the {role} is a {type(name).__name__}: {expected}")
    return _Source(role, os.fspath(name), resolve(os.fspath(name)))


def _require_causal(source: _Source) -> None:
    """Refuse what ``AutoModelForCausalLM`` does not know, and the encoders that it does know."""
    if os.path.isdir(source.location) and not _holds(Path(source.location), CONFIG):
        raise ModelError(f"{source} is a directory without config.json: expected the directory of a saved model")
    config = source.read("configuration", AutoConfig, CONFIG)
    kind = (getattr(config, "architectures", None) or [type(config).__name__])[0]
    if config.is_encoder_decoder or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or "MaskedLM" in kind:
        raise ModelError(f"{source} is a {kind}: expected a causal language model")


def _on_disk(location: str) -> Path | None:
    """Return a directory, or the folder of the hub's cache that holds a model's config.json."""
    if os.path.isdir(location):
        return Path(location)
    with contextlib.suppress(HFValidationError):
        config = try_to_load_from_cache(location, CONFIG[0])
        return Path(config).parent if isinstance(config, str) else None
    return None


def _holds(folder: Path | None, files: tuple[str, ...]) -> bool:
    return folder is not None and any(path.is_file() for pattern in files for path in folder.glob(pattern))


def _state(location: str) -> str:
    folder = _on_disk(location)
    if not _holds(folder, CONFIG) or not _holds(folder, WEIGHTS):
        return "not on disk"
    return "local" if os.path.isdir(location) else "cached"


def _ask_hub(repository: str) -> Exception | None:
    """Return why the hub does not offer a repository, after :data:`HUB_SECONDS` at most; None when it does."""
    faults: list[Exception] = [TimeoutError(f"no answer in {HUB_SECONDS} s")]

    def ask() -> None:
        try:
            HfApi().model_info(repository, timeout=HUB_SECONDS)
            faults.clear()
        except Exception as error:  # the client's HTTP library, and so its errors, differ between releases
            faults[:] = [error]

    thread = threading.Thread(target=ask, daemon=True)  # the look-up of a host's address takes no time limit
    thread.start()
    thread.join(HUB_SECONDS)
    return faults[0] if faults else None


def _reason(error: BaseException) -> str:
    """Return an error's text as part of a sentence."""
    return textwrap.shorten(str(error) or type(error).__name__, 400, placeholder=" ...").rstrip(".")
