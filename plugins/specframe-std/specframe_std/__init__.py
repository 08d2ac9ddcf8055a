"""The standard strategies, one module each, the command that decodes with them, and what single options of a run ask for."""

from __future__ import annotations

from specframe.plugins.hookspecs import Register, RegisterDefaults, RegisterModels, hookimpl


@hookimpl
def specframe_register_drafters(register: Register) -> None:
    register("early-exit", "specframe_std.drafters.early_exit:EarlyExit")
    register("layer-skip", "specframe_std.drafters.layer_skip:LayerSkip")
    register("window", "specframe_std.drafters.window:Window")
    register("first", "specframe_std.drafters.first:First")
    register("model", "specframe_std.drafters.draft_model:ModelDrafter")
    register("none", "specframe_std.drafters.none:NoDrafter")
    register("prompt-lookup", "specframe_std.drafters.prompt_lookup:PromptLookup")
    register("suffix", "specframe_std.drafters.suffix.suffix_drafter:SuffixDrafter")
    register("translated", "specframe_std.drafters.translated:TranslatedDrafter")


@hookimpl
def specframe_register_position_kinds(register: Register) -> None:
    register("counted", "specframe_std.counted_positions:Counted")


@hookimpl
def specframe_register_state_kinds(register: Register) -> None:
    register("gated-delta", "specframe_std.states.delta_rule:GatedDelta")
    register("kimi-delta", "specframe_std.states.delta_rule:KimiDelta")
    register("mamba2", "specframe_std.states.mamba2:Mamba2")
    register("mamba1", "specframe_std.states.mamba1:Mamba1")
    register("lightning", "specframe_std.states.lightning:Lightning")
    register("compressed-convolution", "specframe_std.states.zaya:CompressedConvolution")
    register("short-convolution", "specframe_std.states.short_conv:ShortConvolution")
    register("dynamic-convolution", "specframe_std.states.dynamic_conv:DynamicConvolution")


@hookimpl
def specframe_register_verifiers(register: Register) -> None:
    register("chain", "specframe_std.verifiers.chain:ChainVerifier")


@hookimpl
def specframe_register_acceptance_rules(register: Register) -> None:
    register("greedy", "specframe_std.acceptance.greedy:Greedy")
    register("rejection", "specframe_std.acceptance.rejection:Rejection")
    register("block", "specframe_std.acceptance.block:BlockVerification")
    register("traversal", "specframe_std.acceptance.traversal:Traversal")
    register("gumbel", "specframe_std.acceptance.gumbel:Gumbel")
    register("typical", "specframe_std.acceptance.typical:Typical")
    register("synthetic", "specframe_std.acceptance.synthetic:Synthetic")


@hookimpl
def specframe_register_alignments(register: Register) -> None:
    register("ragged", "specframe_std.alignments.ragged:Ragged")
    register("eqspec", "specframe_std.alignments.eqspec:EqSpec")
    register("exspec", "specframe_std.alignments.exspec:ExSpec")
    register("rollback", "specframe_std.alignments.rollback:Rollback")
    register("masking", "specframe_std.alignments.masking:Masking")
    register("padding", "specframe_std.alignments.padding:Padding")


@hookimpl
def specframe_register_schedulers(register: Register) -> None:
    register("fixed", "specframe_std.schedulers.fixed_batches:Fixed")
    register("continuous", "specframe_std.schedulers.continuous:Continuous")
    register("same-length", "specframe_std.schedulers.same_length:SameLength")


@hookimpl
def specframe_register_kv_backends(register: Register) -> None:
    register("dynamic", "specframe_std.kv.dynamic:Dynamic")
    register("paged", "specframe_std.kv.paged:Paged")
    register("pool", "specframe_std.kv.page_pool:PagePool")
    register("slab", "specframe_std.kv.slab:Slab")


@hookimpl
def specframe_register_attention_backends(register: Register) -> None:
    register("decode", "specframe_std.attention.decode:Decode")  # "auto" takes the first by name that suits
    register("flex", "specframe_std.attention.flex:Flex")
    register("packed", "specframe_std.attention.varlen:Packed")


@hookimpl
def specframe_register_draft_length_policies(register: Register) -> None:
    register("fixed", "specframe_std.policies.fixed_length:FixedLength")
    register("explicit", "specframe_std.policies.explicit:Explicit")
    register("implicit", "specframe_std.policies.implicit:Implicit")
    register("goodput", "specframe_std.policies.goodput:Goodput")


@hookimpl
def specframe_register_executors(register: Register) -> None:
    register("tp", "specframe_std.executors.tp:TensorParallel")
    register("workers", "specframe_std.executors.workers.executor:Workers")


@hookimpl
def specframe_register_commands(register: Register) -> None:
    register("run", "specframe_std.run_command.run:run")
    register("models", "specframe_std.models_command:models")


@hookimpl
def specframe_register_options(register: Register) -> None:
    register("accelerate", "specframe_std.accelerated:accelerate")
    register("assisted", "specframe_std.drop_in:assisted")
    register("graphs", "specframe_std.graphs.kept_graphs:StoreGraphs")
    register("layers", "specframe_std.layers.traces:Traces")
    register("load_options", "specframe_std.load_options:keywords")
    register("processors", "specframe_std.processor_check:warn_of_unfit")
    register("rounds", "specframe_std.graphs.captured_rounds:rounds_of")
    register("states", "specframe_std.states.row_states:RowStates")
    register("watchdog", "specframe_std.watchdog:watch_calls")


@hookimpl
def specframe_register_defaults(register: RegisterDefaults) -> None:
    register("worker processes", "workers")
    register("plain decoding", "none")
    register("draft model", "model")
    register("draft model of another vocabulary", "translated")
    register("prompt lookup", "prompt-lookup")
    register("early exit", "early-exit")
    register("verifier", "chain")
    register("greedy decoding", "greedy")  # of the lossless rules, the one that costs least
    register("sampling", "block")  # of the lossless rules, the one that accepts most
    register("sampling with trees", "gumbel")  # it takes every tree
    register("sampling with drawn trees", "traversal")
    register("alignment", "ragged")
    register("fixed draft length", "fixed")
    register("adaptive draft length", "goodput")


@hookimpl
def specframe_register_models(register: RegisterModels) -> None:
    register("qwen3-8b", "Qwen/Qwen3-8B")
    register("qwen3-0.6b", "Qwen/Qwen3-0.6B", target="qwen3-8b")
    register("qwen3.5-27b", "Qwen/Qwen3.5-27B")
    register("qwen3.5-0.8b", "Qwen/Qwen3.5-0.8B", target="qwen3.5-27b")
    register("vicuna-7b", "lmsys/vicuna-7b-v1.3")
    register("vicuna-68m", "double7/vicuna-68m", target="vicuna-7b")
    register("glm4-9b", "zai-org/GLM-4-9B-0414")
    register("glm4-draft-0.6b", "jukofyork/GLM-4.5-DRAFT-0.6B-v3.0", target="glm4-9b")
