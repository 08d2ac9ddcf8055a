"""Drafters that read the target's features, and the formats of their checkpoints."""

from __future__ import annotations

from specframe.plugins.hookspecs import Register, hookimpl


@hookimpl
def specframe_register_drafters(register: Register) -> None:
    register(
        "eagle",
        "specframe_heads.eagle.eagle_drafter:Eagle",
        summary="A small transformer over the target's features drafts chains or trees: EAGLE-1, 2 and 3.",
        needs={"hidden"},
        offers={"chain", "logits", "stops"},
    )
    register(
        "medusa",
        "specframe_heads.stepwise.step_drafter:Medusa",
        summary=(
            "Medusa's heads, each of which predicts one place from the same feature, draft a tree of their "
            "likeliest tokens."
        ),
        needs={"hidden"},
        offers={"chain", "logits", "stops"},
    )
    register(
        "hydra",
        "specframe_heads.stepwise.step_drafter:Hydra",
        summary=(
            "Hydra's heads read the tokens before their own; of Hydra++ the feature goes through a layer with a "
            "cache first."
        ),
        needs={"hidden"},
        offers={"chain", "logits", "stops"},
    )
    register(
        "clover",
        "specframe_heads.stepwise.step_drafter:Clover",
        summary="Clover's recurrent state takes up the draft's tokens, after one transformer layer over the features.",
        needs={"hidden"},
        offers={"chain", "logits", "stops"},
    )
    register(
        "clover2",
        "specframe_heads.stepwise.step_drafter:Clover2",
        summary="Clover-2's recurrent state takes up the draft's tokens by cosine gates, after two transformer layers.",
        needs={"hidden"},
        offers={"chain", "logits", "stops"},
    )
    register(
        "dflash",
        "specframe_heads.blocks.block_drafter:DFlash",
        summary=(
            "Proposes the tokens of one pass over a block of masks, which reads the target's features: DFlash "
            "(arXiv 2602.06036)."
        ),
        needs={"hidden"},
        offers={"chain", "logits", "stops"},
    )
    register(
        "dspark",
        "specframe_heads.blocks.block_drafter:DSpark",
        summary=(
            "DFlash with a Markov head, which corrects each slot by the token before it, and a confidence head: "
            "DSpark (2607.05147)."
        ),
        needs={"hidden"},
        offers={"chain", "logits", "stops"},
    )
    register(
        "mtp",
        "specframe_heads.mtp.mtp_drafter:Mtp",
        summary=(
            "The MTP layers in a target's own checkpoint, or in a file in the format of `speculators`, draft "
            "chains, or one of them trees."
        ),
        needs={"hidden"},
        offers={"chain", "logits", "stops"},
    )
    register(
        "peagle",
        "specframe_heads.blocks.peagle:PEagle",
        summary=(
            "Proposes the tokens of one pass of an EAGLE-3 head over true pairs and masks: P-EAGLE (arXiv 2602.01469)."
        ),
        needs={"hidden"},
        offers={"chain", "logits", "stops"},
    )
    register(
        "pard",
        "specframe_heads.blocks.pard:Pard",
        summary=(
            "Proposes the tokens that a language model trained with masks predicts in one pass: PARD (arXiv "
            "2504.18583)."
        ),
        offers={"chain", "logits", "stops"},
    )


@hookimpl
def specframe_register_commands(register: Register) -> None:
    register(
        "models check",
        "specframe_heads.commands.check:check",
        summary="Check a head DRAFTER for a target: what its file says, what does not fit, and how much is accepted.",
    )
    register(
        "heads",
        "specframe_heads.commands.heads:heads",
        summary="Train heads, and search the sublayers that a target can spare while it drafts for itself.",
    )


@hookimpl
def specframe_register_checkpoints(register: Register) -> None:
    register(
        "heads",
        "specframe_heads.formats.recognised:drafter_of",
        summary=(
            "Return the drafter that runs the head at a location, as ``name,checkpoint=location``; None: there "
            "is no head."
        ),
    )
