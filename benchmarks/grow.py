"""Models of published shapes without published weights: a small trained model grown, its function preserved.

A grown model gives the small one's logits, and so its greedy tokens, at the cost of the real model: every matrix has the
published size and is dense. The small model must be a Qwen3; the embedded pair is one.

**Residual stream.** The small stream of width d is the first part of the grown one of width D; the rest stays as good as zero.
The mean square over D is then d/D of that over d, so RMSNorm keeps its output with weights times sqrt(d/D) and epsilon
times d/D.

**Whispers.** Whatever writes to a place that has to stay zero (the rest of the stream; all of it in further layers and from further
heads and neurons) is random times 2^-40: far below the rounding of what it is added to, and yet no zeros a kernel
could be faster with. Whatever only reads such places is random.

**Heads.** Query heads keep the key head they share; where fewer of them may share one, key heads are copied. A head of
size h becomes one of size H with queries times sqrt(H/h), as scores are divided by sqrt(H). With R rotary places in H, and R a
multiple of h, pair j of the small head becomes pair (R/h) j: theta^(-2 (R/h) j / R) is its frequency theta^(-2j/h) again, so theta
is the small model's and not the published one.

**Vocabulary.** A row of the head for an id beyond the small vocabulary lies halfway between a used row and the mean of all
used rows. Its logit is halfway between theirs, so it falls short of the best used logit by at least half of what the mean
logit does: it is never the most likely token. Sampling is not preserved: such ids take some probability.

**What has no norms per head** (Llama, Qwen2, GLM-4) cannot compute what Qwen3's queries and keys are, a division by each one's
own size. There every head is divided by its mean size on given texts: another small model near the first, which the
grown one then preserves. GLM-4's norms after each block become the identity: epsilon 2^40 and weights 2^20.

Epsilons are set on the grown model's modules, its configuration keeps the published ones.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from specframe.errors import ModelError, UnknownNameError
from specframe.models import loading as models
from specframe.reference import reference_decode
from specframe.text.prompts.builtin import BUILT_IN

WHISPER = 2.0**-40

_FIELDS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings",
)  # fmt: skip
_SHAPES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "qwen3-8b": ("Qwen3", (151936, 4096, 12288, 36, 32, 8, 128, 40960, 1e-6, False), {}),
    "qwen3-0.6b": ("Qwen3", (151936, 1024, 3072, 28, 16, 8, 128, 40960, 1e-6, True), {}),
    "vicuna-7b": ("Llama", (32000, 4096, 11008, 32, 32, 32, 128, 2048, 1e-6, False), {}),
    "vicuna-68m": ("Llama", (32000, 768, 3072, 2, 12, 12, 64, 2048, 1e-6, False), {}),
    "glm4-9b": (
        "Glm4",
        (151552, 4096, 13696, 40, 32, 2, 128, 32768, 1e-5, False),
        {"partial_rotary_factor": 0.5, "attention_bias": True},
    ),
    "glm4-draft-0.6b": ("Qwen2", (151552, 896, 4864, 24, 14, 2, 64, 32768, 1e-6, False), {}),
    "cpu-100m": ("Qwen3", (8192, 768, 2048, 15, 12, 4, 64, 2048, 1e-6, True), {}),
    "cpu-10m": ("Qwen3", (8192, 384, 1024, 4, 6, 2, 64, 2048, 1e-6, True), {}),
    "small": ("Qwen3", (3072, 256, 640, 12, 8, 4, 64, 2048, 1e-6, False), {}),
    "small-draft": ("Qwen3", (3072, 224, 640, 3, 4, 2, 64, 2048, 1e-6, True), {}),
}
PAIRS = {
    "embedded": ("tiny", "tiny-draft"),
    "small": ("small", "small-draft"),
    "cpu": ("cpu-100m", "cpu-10m"),
    "qwen3-8b": ("qwen3-8b", "qwen3-0.6b"),
    "vicuna-7b": ("vicuna-7b", "vicuna-68m"),
    "glm4-9b": ("glm4-9b", "glm4-draft-0.6b"),
}
"""Target and draft of each pair; ``embedded`` is the small pair itself."""


def shape(name: str) -> PreTrainedConfig:
    """Return the configuration of a named shape; raise :class:`UnknownNameError` for one there is not."""
    if name not in _SHAPES:
        raise UnknownNameError("shape", name, _SHAPES)
    family, values, others = _SHAPES[name]
    return getattr(transformers, f"{family}Config")(**dict(zip(_FIELDS, values, strict=True)), **others)


def load_pair(
    name: str, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[PreTrainedModel, PreTrainedModel, Any]:
    """Return target, draft and tokenizer of a pair in :data:`PAIRS`, grown on the device."""
    if name not in PAIRS:
        raise UnknownNameError("pair", name, PAIRS)
    on = torch.device(device)
    tokenizer: Any = models.load_tokenizer("tiny")
    place, precision = (on, dtype) if name == "embedded" else (torch.device("cpu"), torch.float32)
    small = [models.load_model(alias, "target", place, precision) for alias in PAIRS["embedded"]]
    if name != "embedded":
        configs = [shape(one) for one in PAIRS[name]]
        texts = [] if all(has_head_norms(config) for config in configs) else calibration(small[0], tokenizer)
        small = [
            grow(source, config, texts, on, dtype, seed + number)
            for number, (source, config) in enumerate(zip(small, configs, strict=True))
        ]
    return small[0], small[1], tokenizer


def calibration(source: PreTrainedModel, tokenizer: Any, new: int = 48) -> list[list[int]]:
    """Return the built-in prompts, each with the model's own continuation."""
    prompts = [tokenizer(text).input_ids for text in BUILT_IN]
    return [prompt + reference_decode(source, prompt, new) for prompt in prompts]


@torch.no_grad()
def grow(
    source: PreTrainedModel,
    config: PreTrainedConfig,
    texts: Sequence[Sequence[int]] = (),
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> PreTrainedModel:
    """Return a model of the shape of ``config`` that computes what ``source`` does.

    Args:
        source: a Qwen3 on the CPU in float32, no larger than the shape in any respect.
        config: of Qwen3, Qwen2, Llama or GLM-4; its rotary base and its special ids become the source's.
        texts: token ids on which the mean size of heads is measured, for a shape without norms per head.
        device, dtype: where and in what precision the weights are made.
        seed: of the random weights.

    Raises:
        ModelError: the source does not fit into the shape, or there are no texts where they are needed.
    """
    own = source.config
    normed = has_head_norms(config)
    check(own, config, normed or bool(texts))
    sizes = [(None, None)] * own.num_hidden_layers if normed else head_sizes(source, texts)
    model = random_model(like(config, own), torch.device(device), dtype, seed)
    for index, layer in enumerate(model.model.layers):
        for module in (layer.self_attn.o_proj, layer.mlp.down_proj):
            module.weight.mul_(WHISPER)
        for name in ("post_self_attn_layernorm", "post_mlp_layernorm"):
            if hasattr(layer, name):
                become_identity(getattr(layer, name))
        if index < own.num_hidden_layers:
            given = source.model.layers[index]
            grow_attention(given.self_attn, layer.self_attn, *sizes[index])
            grow_mlp(given.mlp, layer.mlp)
            for name in ("input_layernorm", "post_attention_layernorm"):
                grow_norm(getattr(given, name), getattr(layer, name))
    grow_norm(source.model.norm, model.model.norm)
    grow_vocabulary(source, model)
    return model.eval()


def check(own: Any, config: Any, measured: bool) -> None:
    """Raise :class:`ModelError` when a source of configuration ``own`` does not fit into a shape."""
    if own.model_type != "qwen3":
        raise ModelError(f"the source is a {own.model_type}: expected a qwen3")
    if config.model_type not in ("qwen3", "qwen2", "llama", "glm4"):
        raise ModelError(f"the shape is of a {config.model_type}: expected qwen3, qwen2, llama or glm4")
    for field in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"):
        if getattr(config, field) < getattr(own, field):
            raise ModelError(
                f"the shape's {field} is {getattr(config, field)}: expected at least {getattr(own, field)}"
            )
    if rotary_size(config) % own.head_dim:
        raise ModelError(
            f"the shape rotates {rotary_size(config)} places of a head: expected a multiple of {own.head_dim}"
        )
    if not measured:
        raise ModelError(f"a {config.model_type} has no norms per head: expected texts to measure the size of heads on")
    head_places(own, config)


def like(config: PreTrainedConfig, own: Any) -> PreTrainedConfig:
    """Return the shape's configuration with the source's rotary base and special ids."""
    config = copy.deepcopy(config)
    config.rope_parameters = {**config.rope_parameters, "rope_theta": own.rope_parameters["rope_theta"]}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, name, getattr(own, name))
    return config


def random_model(config: PreTrainedConfig, device: torch.device, dtype: torch.dtype, seed: int) -> PreTrainedModel:
    """Return a model with random weights, made on the device."""
    with torch.random.fork_rng(devices=None if device.type == "cuda" else []), device:
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def head_sizes(source: PreTrainedModel, texts: Sequence[Sequence[int]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return, per layer, one over the mean size (root mean square) of each query head (H,) and key head (G,) on texts."""
    norms = [(layer.self_attn.q_norm, layer.self_attn.k_norm) for layer in source.model.layers]
    seen: dict[Any, list[torch.Tensor]] = {norm: [] for pair in norms for norm in pair}

    def look(module: Any, inputs: tuple[torch.Tensor, ...], _: torch.Tensor) -> None:
        mean_square_BTH = inputs[0].pow(2).mean(-1) + module.variance_epsilon
        seen[module].append(mean_square_BTH.rsqrt().flatten(0, 1))

    hooks = [norm.register_forward_hook(look) for norm in seen]
    try:
        for ids in texts:
            source(torch.tensor([list(ids)]))
    finally:
        for hook in hooks:
            hook.remove()
    return [(torch.cat(seen[q]).mean(0), torch.cat(seen[k]).mean(0)) for q, k in norms]


def has_head_norms(config: PreTrainedConfig) -> bool:
    """Return whether queries and keys are normed head by head."""
    return config.model_type == "qwen3"


def rotary_size(config: Any) -> int:
    """Return how many places of each head are rotated."""
    share = config.rope_parameters.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None) or 1
    return int(head_size(config) * share)


def head_size(config: Any) -> int:
    """Return the size of a head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def places(own: Any, config: Any) -> torch.Tensor:
    """Return the place in a grown head of each place of a small one, (h,): where the rotary frequency is the same."""
    rotary = rotary_size(config)
    pairs = torch.arange(own.head_dim // 2) * (rotary // own.head_dim)
    if config.model_type == "glm4":  # pairs are neighbours there, and half a head apart elsewhere
        return torch.cat([2 * pairs, 2 * pairs + 1])
    return torch.cat([pairs, pairs + rotary // 2])


def head_places(own: Any, config: Any) -> tuple[list[int], list[int]]:
    """Return the grown head of each small query head, and the small key head of each grown key head in use.

    Raises:
        ModelError: there are too few heads.
    """
    sharing = own.num_attention_heads // own.num_key_value_heads
    room = config.num_attention_heads // config.num_key_value_heads
    copies = math.ceil(sharing / room)
    if own.num_key_value_heads * copies > config.num_key_value_heads:
        raise ModelError(
            f"the shape has {config.num_key_value_heads} key heads: expected at least {own.num_key_value_heads * copies}"
        )
    queries = []
    for head in range(own.num_attention_heads):
        key, place = divmod(head, sharing)
        queries.append((key * copies + place // room) * room + place % room)
    return queries, [head // copies for head in range(own.num_key_value_heads * copies)]


def grow_attention(given: Any, grown: Any, query_sizes: torch.Tensor | None, key_sizes: torch.Tensor | None) -> None:
    """Write a small attention block into a grown one; the sizes are those of heads that have no norm there."""
    own, config = given.config, grown.config
    h, H, d = own.head_dim, head_size(config), own.hidden_size
    inside, (queries, keys) = places(own, config), head_places(own, config)
    q_HhD, k_GhD, v_GhD = (
        module.weight.view(-1, h, d)[heads]
        for module, heads in ((given.q_proj, slice(None)), (given.k_proj, keys), (given.v_proj, keys))
    )
    if query_sizes is None or key_sizes is None:
        for given_norm, norm, scale in (
            (given.q_norm, grown.q_norm, math.sqrt(H / h)),
            (given.k_norm, grown.k_norm, 1.0),
        ):
            norm.weight[inside] = (given_norm.weight * math.sqrt(h / H) * scale).to(norm.weight)
            norm.variance_epsilon = given_norm.variance_epsilon * h / H
    else:
        q_HhD = q_HhD * query_sizes[:, None, None] * given.q_norm.weight[:, None] * math.sqrt(H / h)
        k_GhD = k_GhD * key_sizes[keys][:, None, None] * given.k_norm.weight[:, None]
    used_keys = list(range(len(keys)))
    for module, heads, rows in ((grown.q_proj, queries, q_HhD), (grown.k_proj, used_keys, k_GhD)):
        whole_HhD = module.weight.view(-1, H, config.hidden_size)
        whole_HhD[heads] *= WHISPER
        write(whole_HhD, rows, heads, inside)
    write(grown.v_proj.weight.view(-1, H, config.hidden_size), v_GhD, used_keys, inside)
    out_DHh = given.o_proj.weight.view(d, -1, h)
    write(
        grown.o_proj.weight.view(config.hidden_size, -1, H).permute(1, 2, 0), out_DHh.permute(1, 2, 0), queries, inside
    )


def write(whole_HhD: torch.Tensor, part_HhD: torch.Tensor, heads: list[int], inside: torch.Tensor) -> None:
    """Write what heads have at some of their places, for the first part of the stream."""
    for head, rows in zip(heads, part_HhD, strict=True):
        block = whole_HhD[head, :, : rows.shape[1]]
        block[inside.to(block.device)] = rows.to(block)


def grow_mlp(given: Any, grown: Any) -> None:
    """Write a small feed-forward block into a grown one."""
    (m, d), wide = given.gate_proj.weight.shape, grown.down_proj.weight.shape[1]
    merged = getattr(grown, "gate_up_proj", None)  # GLM-4 has both in one
    gate, up = (grown.gate_proj.weight, grown.up_proj.weight) if merged is None else merged.weight.split(wide)
    gate[:m, :d] = given.gate_proj.weight.to(gate)
    up[:m, :d] = given.up_proj.weight.to(up)
    grown.down_proj.weight[:d, :m] = given.down_proj.weight.to(gate)


def grow_norm(given: Any, grown: Any) -> None:
    """Make a norm over the grown stream give what the small one gives."""
    d, D = len(given.weight), len(grown.weight)
    grown.weight[:d] = (given.weight * math.sqrt(d / D)).to(grown.weight)
    grown.variance_epsilon = given.variance_epsilon * d / D


def become_identity(norm: Any) -> None:
    """Make RMSNorm pass on what it gets: next to an epsilon of 2^40 the mean square is lost in rounding."""
    norm.variance_epsilon = 2.0**40
    norm.weight.fill_(2.0**20)


def grow_vocabulary(source: Any, model: Any) -> None:
    """Write embeddings and head; see the module's docstring for the ids beyond the small vocabulary."""
    used_VD, head_VD = source.get_input_embeddings().weight, source.get_output_embeddings().weight
    v, d = used_VD.shape
    embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    embeddings[:v, d:] *= WHISPER
    embeddings[:v, :d] = used_VD.to(embeddings)
    head[:v, :d] = head_VD.to(head)
    further = torch.arange(len(head) - v) % v
    head[v:, :d] = ((head_VD + head_VD.mean(0)) / 2)[further].to(head)
