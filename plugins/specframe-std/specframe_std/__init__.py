"""The standard strategies, one module each, and what single options of a run ask for, registered through hooks."""

from __future__ import annotations

from specframe.plugins.hookspecs import Register, RegisterDefaults, RegisterModels, hookimpl


@hookimpl
def specframe_register_drafters(register: Register) -> None:
    register(
        "early-exit",
        "specframe_std.drafters.early_exit:EarlyExit",
        summary=(
            "Proposes the choices of the target's first layers, of which the final norm and the language head "
            "make logits."
        ),
        needs={"share"},
        offers={"budget", "chain", "logits", "steady", "stops"},
    )
    register(
        "layer-skip",
        "specframe_std.drafters.layer_skip:LayerSkip",
        summary="Proposes the choices of the target with chosen sublayers left out: the attention or the MLP of some layers.",
        needs={"share"},
        offers={"budget", "chain", "logits", "steady", "stops"},
    )
    register(
        "window",
        "specframe_std.drafters.window:Window",
        summary="Proposes the target's own choices where it sees the first tokens of each row and the last ones alone.",
        needs={"gather", "share"},
        offers={"budget", "chain", "logits", "steady", "stops"},
    )
    register(
        "first",
        "specframe_std.drafters.first:First",
        summary="Proposes, for each row and round, the draft of the first of several drafters that is sure enough.",
        offers={"budget", "chain", "logits"},
    )
    register(
        "model",
        "specframe_std.drafters.model:ModelDrafter",
        summary=(
            "Proposes a small language model's own continuation, or a tree of continuations, chosen as the "
            "acceptance rule asks."
        ),
        offers={"budget", "chain", "logits", "steady", "stops"},
    )
    register(
        "none",
        "specframe_std.drafters.none:NoDrafter",
        summary="Proposes nothing: plain decoding, the baseline everything is compared with.",
        offers={"chain"},
    )
    register(
        "prompt-lookup",
        "specframe_std.drafters.prompt_lookup:PromptLookup",
        summary=(
            "Proposes what followed the most recent earlier occurrence of the row's last tokens, in prompt and output."
        ),
        offers={"chain"},
    )
    register(
        "suffix",
        "specframe_std.drafters.suffix.drafter:SuffixDrafter",
        summary="Proposes what followed the row's last tokens most often, in its own text and in earlier responses.",
        offers={"budget", "chain", "match"},
    )
    register(
        "translated",
        "specframe_std.drafters.translated:TranslatedDrafter",
        summary="Proposes the continuation of a draft model with another tokenizer, by way of text.",
        offers={"chain"},
    )


@hookimpl
def specframe_register_position_kinds(register: Register) -> None:
    register(
        "counted",
        "specframe_std.counted_positions:Counted",
        summary="The positions that the kinds of BART, Whisper, RoFormer, BLOOM, MPT, GPT-Neo, Llama 4 and Inkling count.",
    )


@hookimpl
def specframe_register_state_kinds(register: Register) -> None:
    register(
        "gated-delta",
        "specframe_std.states.delta_rule:GatedDelta",
        summary="The gated delta rule of Qwen3-Next, Qwen3.5 and OLMo Hybrid.",
        offers={"bitwise"},
    )
    register(
        "kimi-delta",
        "specframe_std.states.delta_rule:KimiDelta",
        summary="Kimi Delta Attention, of Kimi Linear and Bailing hybrid models.",
        offers={"bitwise"},
    )
    register(
        "mamba2",
        "specframe_std.states.mamba2:Mamba2",
        summary="The selective scan of Mamba-2, Falcon-H1, Nemotron-H, Granite 4, Zamba2 and Bamba.",
        offers={"bitwise"},
    )
    register(
        "mamba1",
        "specframe_std.states.mamba1:Mamba1",
        summary="The selective scan of Mamba, Falcon-Mamba, Jamba and Zamba.",
        offers={"bitwise"},
    )
    register(
        "lightning",
        "specframe_std.states.lightning:Lightning",
        summary="The linear attention of MiniMax, with a fixed decay per head.",
        offers={"bitwise"},
    )
    register(
        "compressed-convolution",
        "specframe_std.states.zaya:CompressedConvolution",
        summary="The convolved queries and keys, and delayed values, of Zaya.",
        offers={"bitwise"},
    )
    register(
        "short-convolution",
        "specframe_std.states.short_conv:ShortConvolution",
        summary="The short convolutions of LFM2 and its successors, of Inkling and Inkling 2.",
        offers={"bitwise"},
    )
    register(
        "dynamic-convolution",
        "specframe_std.states.dynamic_conv:DynamicConvolution",
        summary="The short convolutions of Inkling 2 whose weights are made of each token.",
    )


@hookimpl
def specframe_register_verifiers(register: Register) -> None:
    register(
        "chain",
        "specframe_std.verifiers.chain:ChainVerifier",
        summary="Feeds each row's last token and its draft to the target in one pass.",
        offers={"chain", "hidden", "tree"},
    )


@hookimpl
def specframe_register_acceptance_rules(register: Register) -> None:
    register(
        "greedy",
        "specframe_std.acceptance.greedy:Greedy",
        summary="Accepts draft tokens while they are the target's most likely ones: the target's own greedy output.",
        offers={"distinct", "draft-invariant", "independent", "lossless", "prunable", "tree"},
    )
    register(
        "rejection",
        "specframe_std.acceptance.rejection:Rejection",
        summary=(
            "Accepts a draft token with probability min(1, p/q) and resamples the first rejected from the "
            "residual max(0, p - q)."
        ),
        needs={"logits"},
        offers={"distinct", "lossless", "samples", "tree"},
    )
    register(
        "block",
        "specframe_std.acceptance.block:Block",
        summary=(
            "Accepts the longest prefix that a joint test passes: lossless, and never fewer tokens on average "
            "than rejection."
        ),
        needs={"logits"},
        offers={"lossless", "samples"},
    )
    register(
        "traversal",
        "specframe_std.acceptance.traversal:Traversal",
        summary=(
            "Accepts a path of a tree as a whole, from the leaves up: lossless, and more tokens than "
            "``rejection``. Chains as ``block``."
        ),
        needs={"logits"},
        offers={"distinct", "lossless", "samples", "tree"},
    )
    register(
        "gumbel",
        "specframe_std.acceptance.gumbel:Gumbel",
        summary="Adds the same Gumbel noise to target and draft logits and takes the most likely token of each.",
        offers={"distinct", "draft-invariant", "independent", "lossless", "prunable", "samples", "tree"},
    )
    register(
        "typical",
        "specframe_std.acceptance.typical:Typical",
        summary=(
            "Accepts a draft token whose probability exceeds min(epsilon, delta * exp(-entropy)). NOT lossless: "
            "it favours the draft."
        ),
        offers={"distinct", "independent", "prunable", "samples", "tree"},
    )
    register(
        "synthetic",
        "specframe_std.acceptance.synthetic:Synthetic",
        summary=(
            "Accepts draft tokens at a given rate, right or wrong, to separate cost from drafter quality: NOT lossless."
        ),
    )


@hookimpl
def specframe_register_alignments(register: Register) -> None:
    register(
        "ragged",
        "specframe_std.alignments.ragged:Ragged",
        summary="A token's slot is its position; a rejected token is overwritten by the next round.",
        needs={"scatter"},
        offers={"lossless", "share", "tree", "uneven"},
        scheduler="continuous",
        kv="slab",
    )
    register(
        "eqspec",
        "specframe_std.alignments.eqspec:EqSpec",
        summary=(
            "Realigns rows to the right after every round, with padding on the left: correct, but each round "
            "moves the cache."
        ),
        needs={"append", "move"},
        offers={"lossless", "share", "tree", "uneven"},
        scheduler="fixed",
        kv="dynamic",
    )
    register(
        "exspec",
        "specframe_std.alignments.exspec:ExSpec",
        summary="Does not move rows after a round. Rows of equal length then form a batch without realignment.",
        needs={"append", "move"},
        offers={"lossless", "share", "tree", "uneven"},
        scheduler="same-length",
        kv="dynamic",
    )
    register(
        "rollback",
        "specframe_std.alignments.rollback:Rollback",
        summary=(
            "Cuts every row to the fewest accepted tokens of the batch, so that nothing becomes ragged: correct, "
            "wasteful."
        ),
        needs={"append", "move"},
        offers={"lossless", "share", "tree"},
        scheduler="fixed",
        kv="dynamic",
    )
    register(
        "masking",
        "specframe_std.alignments.masking:Masking",
        summary=(
            "Masks rejected tokens, moves nothing; reproduces the published flaw of position ids that drift: NOT "
            "lossless."
        ),
        needs={"append", "grow"},
        scheduler="fixed",
        kv="dynamic",
    )
    register(
        "padding",
        "specframe_std.alignments.padding:Padding",
        summary=(
            "Adds padding without removing old padding; reproduces the published flaws of mask, positions and "
            "bonus: NOT lossless."
        ),
        needs={"append", "grow", "move"},
        scheduler="fixed",
        kv="dynamic",
    )


@hookimpl
def specframe_register_schedulers(register: Register) -> None:
    register(
        "fixed",
        "specframe_std.schedulers.fixed:Fixed",
        summary="Fills a batch, decodes it to the end, then fills the next; finished rows leave at once.",
    )
    register(
        "continuous",
        "specframe_std.schedulers.continuous:Continuous",
        summary="Replaces finished rows by the prompts that wait, except when that would pass over live rows twice.",
    )
    register(
        "same-length",
        "specframe_std.schedulers.same_length:SameLength",
        summary="Groups sequences of equal length from a window, so that nothing has to be realigned.",
    )


@hookimpl
def specframe_register_kv_backends(register: Register) -> None:
    register(
        "dynamic",
        "specframe_std.kv.dynamic:Dynamic",
        summary=(
            "Grows by concatenation and holds no more columns than the batch has, like the caches of published schemes."
        ),
        offers={"append", "dense", "gather", "grow", "move"},
    )
    register(
        "paged",
        "specframe_std.kv.paged:Paged",
        summary=(
            "Gives rows blocks of one pool as they grow, and may keep complete blocks for prompts that begin alike."
        ),
        offers={"append", "bounded", "dense", "gather", "move", "pooled", "scatter"},
    )
    register(
        "pool",
        "specframe_std.kv.pool:Pool",
        summary=(
            "Gives each row a piece of one pool, as long as its sequence is, which grows with it and is free when it ends."
        ),
        offers={"append", "bounded", "dense", "gather", "move", "pooled", "scatter"},
    )
    register(
        "slab",
        "specframe_std.kv.slab:Slab",
        summary="Preallocates every slot of every row; new keys and values are written in place.",
        offers={"any-row", "append", "dense", "gather", "move", "scatter"},
    )


@hookimpl
def specframe_register_draft_length_policies(register: Register) -> None:
    register(
        "fixed",
        "specframe_std.policies.fixed:FixedLength",
        summary="Drafts the same number of tokens every round.",
        offers={"steady"},
    )
    register(
        "explicit",
        "specframe_std.policies.explicit:Explicit",
        summary=(
            "Drafts for each row as many tokens as are likely to stand, by which tokens of its own drafts stood in the "
            "rounds before."
        ),
        offers={"trees"},
    )
    register(
        "implicit",
        "specframe_std.policies.implicit:Implicit",
        summary=(
            "Ends each row's draft where the drafter's confidence says that the next token is unlikely to stand, with all "
            "before it."
        ),
        needs={"stops"},
        offers={"calibration"},
    )
    register(
        "goodput",
        "specframe_std.policies.goodput:Goodput",
        summary=(
            "Drafts for each row as many tokens as give most tokens per second over the batch; none where plain decoding "
            "is faster."
        ),
        offers={"calibration", "trees"},
    )


@hookimpl
def specframe_register_executors(register: Register) -> None:
    register(
        "tp",
        "specframe_std.executors.tp:TensorParallel",
        summary=(
            "Splits the target's layers over the processes that torchrun has started; all of them decode the same rows."
        ),
        offers={"loading", "ranks"},
    )
    register(
        "workers",
        "specframe_std.executors.workers.executor:Workers",
        summary="Decodes in worker processes of this machine, each with models of its own.",
        offers={"remote"},
    )


@hookimpl
def specframe_register_commands(register: Register) -> None:
    register(
        "models",
        "specframe_std.models_command:models",
        summary="List, add, remove or show names of models. Without a subcommand, list them.",
    )


@hookimpl
def specframe_register_options(register: Register) -> None:
    register(
        "assisted",
        "specframe_std.drop_in:assisted",
        summary="Return a function for ``model.generate(custom_generate=...)``, as ``specframe.assisted`` does.",
    )
    register(
        "load_options",
        "specframe_std.load_options:keywords",
        summary=(
            "Return load options as keyword arguments of ``from_pretrained``, with a config of their own, which loading may change."
        ),
    )
    register(
        "output",
        "specframe_std.result_file:ResultFile",
        summary="A file with one JSON line per finished sequence, written at once; sorted by index when the run is complete.",
    )
    register(
        "processors",
        "specframe_std.processor_trial:warn_of_unfit",
        summary="Warn of each given processor or criterion that has to be called once per token. The trial uses one prompt.",
    )
    register(
        "prompts",
        "specframe_std.prompt_tables:open_table",
        summary=(
            "Return the first prompts of a CSV or Parquet file, of a data set's folder, or of ``hf:NAME[:SPLIT[:COLUMN]]``."
        ),
    )
    register(
        "ranks",
        "specframe_std.executors.command_ranks:SeveralRanks",
        summary="The ranks of a command, of which one reads and writes, seen from one of them.",
    )
    register(
        "watchdog",
        "specframe_std.watchdog:watch_calls",
        summary="Name the strategy whose call takes long, on standard error, while the block runs.",
    )


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
