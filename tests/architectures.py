"""Every decoder architecture of transformers as a tiny random model, made from its configuration class alone.

The fields of a configuration are set by their names, wherever they occur, to sizes that fit together; what one architecture
needs beside that is in :data:`OWN`. Matrices are drawn anew and wide, so that no two logits come near a tie.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from specframe_testing.zoo import CONTEXT, EOS, VOCABULARY, WIDTH, quiet
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

NAMES = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
"""The model types that ``AutoModelForCausalLM`` knows, in the transformers installed."""

RELEASE = tuple(int(part) for part in transformers.__version__.split(".")[:2])

FAULTY = frozenset({"big_bird", "doge", "git", "megatron-bert", "rembert", "roformer"} if RELEASE < (5, 18) else ())
"""The model types that the transformers installed decodes wrongly itself: they are refused.

Before 5.18, GIT shifts the position of a token that is fed alone, and the others let tokens attend to later ones.
"""

OTHERWISE = frozenset(
    {"axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4", "inkling2_text", "inkling_text"} if RELEASE < (5, 23) else ()
)
"""The model types whose indexers or biases are written in another way in the transformers installed: they may be refused."""

LARGEST = 8_000_000
"""Parameters of a model that still counts as tiny: one forward takes milliseconds."""

FIELDS: dict[Any, str] = {
    VOCABULARY: "vocab_size decoder_vocab_size unpadded_vocab_size vocab_size_per_layer_input",
    CONTEXT: "max_position_embeddings n_positions n_ctx max_seq_len context_length max_target_positions model_max_length",
    32: "hidden_size n_embd d_model emb_dim embedding_size input_embedding_size output_embedding_size word_embed_proj_dim "
    "embedding_dim attention_hidden_size rotary_ndims lru_width num_mel_bins max_source_positions",
    48: "intermediate_size intermediate_size_mlp ffn_dim ffn_hidden_size dff dim_ff d_inner feed_forward_size "
    "decoder_ffn_dim encoder_ffn_dim dense_intermediate_size n_inner",
    24: "moe_intermediate_size expert_ffn_hidden_size shared_expert_intermediate_size shared_intermediate_size "
    "shared_experts_intermediate_size moe_shared_expert_intermediate_size",
    2: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_encoder_layers num_decoder_layers "
    "num_key_value_heads num_kv_heads num_query_groups swa_num_key_value_heads num_experts_per_tok num_experts_per_token "
    "moe_topk moe_k n_group topk_group num_expert_group depth linear_num_key_heads",
    4: "num_attention_heads n_head n_heads num_heads attention_heads decoder_attention_heads encoder_attention_heads "
    "num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads num_experts num_local_experts "
    "n_routed_experts moe_num_experts mamba_n_heads qk_rope_head_dim rotary_dim zero_expert_num linear_num_value_heads "
    "linear_num_heads",
    8: "head_dim dim_head d_head kv_channels swa_head_dim attention_head_dim qk_nope_head_dim v_head_dim "
    "kv_lora_rank q_lora_rank hidden_size_per_layer_input linear_head_dim linear_key_head_dim linear_value_head_dim "
    "state_size ssm_state_size mamba_d_state",
    7: "sliding_window sliding_window_size local_attention",
    12: "qk_head_dim",
    16: "mamba_d_head chunk_size mamba_chunk_size block_size",
    1: "n_shared_experts num_shared_experts moe_num_shared_experts pretraining_tp",
    EOS: "eos_token_id pad_token_id bos_token_id",
}
"""The value of every field that is set, by its name."""

SIZES = {name: value for value, names in FIELDS.items() for name in names.split()} | {"is_decoder": True}

MLA = {"num_key_value_heads": 4, "head_dim": 4}
"""Multi-head latent attention: as many key heads as query heads; what is called the size of a head is its rotated part."""

HYBRID = {"num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
"""Layers of both kinds, of which there would be one kind alone in few layers."""


CHUNKED = {"attention_chunk_size": 5, "no_rope_layers": [1, 0], "floor_scale": 3, "attn_scale": 2.0}
"""Chunks that rows begin and end within; a layer without positions, whose queries have another temperature every third token."""

INDEXED = MLA | {"index_topk": 5, "index_n_heads": 16, "index_head_dim": 8}
"""Fewer tokens are attended to than rows have. One head in this many has a score, so that no two tokens tie at 0."""

UNLIKE = INDEXED | {
    "layer_types": ["indexed_attention", "sliding_attention"],
    "swa_num_attention_heads": 2,
    "swa_num_key_value_heads": 2,
}
"""Layers of two kinds, with other numbers of heads each."""

SHORT = {"layer_types": ["conv", "full_attention"]}
INKLING = {
    "layer_types": ["hybrid_sliding", "hybrid"],
    "rel_extent": 6,
    "log_scaling_n_floor": 3,
    "log_scaling_alpha": 0.5,
}
ZAMBA = {
    "num_hidden_layers": 4,
    "layers_block_type": ["mamba", "hybrid"] * 2,
    "attention_hidden_size": 64,
    "attention_head_dim": 16,
}

OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "longcat_flash", "minicpm3", "youtu"), MLA),
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
            for kind in ("full_attention", "sliding_attention")
        }
    },
    "dbrx": {
        "attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    **dict.fromkeys(("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4"), INDEXED),
    "dots3_note": {"text_config": UNLIKE},
    "dots3_note_text": UNLIKE,
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 5},
    "inkling2_text": INKLING,
    "inkling_text": INKLING | {"mlp_layer_types": ["dense", "sparse"], "logits_mup_width_multiplier": 1.0},
    **dict.fromkeys(("lfm2", "lfm2_moe", "lfm3"), SHORT),
    **dict.fromkeys(("granitemoehybrid", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"), HYBRID),
    **dict.fromkeys(("bailing_hybrid", "kimi_linear"), MLA | HYBRID),
    "llama4": {"text_config": CHUNKED},
    "llama4_text": CHUNKED,
    "mamba2": {"head_dim": 16, "n_groups": 2},
    "minimax": {"sliding_window": None},
    "qwen3_5": {"text_config": HYBRID},
    "qwen3_5_moe": {"text_config": HYBRID},
    "bamba": {"attn_layer_indices": [1], "num_hidden_layers": 3},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "nemotron_h": {"layers_block_type": ["mamba", "attention", "moe", "mlp", "mamba"]},
    "reformer": {"axial_pos_embds": False},
    "roc_bert": {"pronunciation_vocab_size": VOCABULARY, "shape_vocab_size": VOCABULARY},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    **dict.fromkeys(("zamba", "zamba2"), ZAMBA),
    "zaya": {"num_experts_per_tok": 1},
}
"""Further settings of model types besides :data:`SIZES`, also for the parts of their configurations."""


def known(name: str) -> bool:
    """Return whether the transformers installed has a model type, and not in another way."""
    return name in NAMES and name not in OTHERWISE


def build(name: str, seed: int = 0, **options: Any) -> PreTrainedModel:
    """Return a tiny random model of a model type in :data:`NAMES`, the same one for the same seed.

    Args:
        name: of the model type.
        seed: of its weights.
        options: fields of the configuration, in place of those of :data:`SIZES` and :data:`OWN`.

    Raises:
        Exception: whatever transformers raises on sizes that do not fit, or ValueError: the model is not tiny.
    """
    with quiet(), torch.random.fork_rng(devices=[]):
        factory = CONFIG_MAPPING[name]
        config = factory(**shrunk(factory(), OWN.get(name, {}) | options))
        with torch.device("meta"):
            parameters = AutoModelForCausalLM.from_config(config).num_parameters()
        if parameters > LARGEST:
            raise ValueError(f"{name} has {parameters} parameters: expected at most {LARGEST}")
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        for weight in dict.fromkeys(model.parameters()):
            if weight.ndim > 1:
                torch.nn.init.normal_(weight, std=WIDTH)
    return model.eval()


def shrunk(config: PreTrainedConfig, own: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that make a configuration like ``config`` tiny, with settings for its parts."""
    fields = {name: SIZES[name] for name in vars(config) if name in SIZES} | own
    parts = {name: part for name, part in vars(config).items() if isinstance(part, PreTrainedConfig)}
    return fields | {
        name: {"model_type": part.model_type} | shrunk(part, own.get(name, {})) for name, part in parts.items()
    }
