"""Comparison of the target's and the draft model's vocabularies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

VOCABULARY_SLACK = 256
"""Most entries by which two vocabularies may differ: an embedding may be padded, or one vocabulary may have added tokens."""


PROBE = "Two words, 3 lines:\n  one.\n"
"""Text that a tokenizer has to reproduce exactly after encoding and decoding."""


def share_vocabulary(
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    target_tokenizer: PreTrainedTokenizerBase | None,
    draft_tokenizer: PreTrainedTokenizerBase | None,
) -> bool:
    """Return whether two models share a vocabulary; if not, the draft model can draft by way of text.

    Raises:
        ModelError: the vocabularies differ, and a model's tokenizer is missing or changes text.
    """
    try:
        check_vocabularies(target_model, draft_model, target_tokenizer, draft_tokenizer)
    except ModelError as error:
        for role, tokenizer in (("target", target_tokenizer), ("draft", draft_tokenizer)):
            if fault := text_fault(tokenizer):
                raise ModelError(
                    f"{error}; drafting by way of text needs both tokenizers, and the {role} {fault}"
                ) from error
        return False
    return True


def text_fault(tokenizer: PreTrainedTokenizerBase | None) -> str | None:
    """Return why a tokenizer cannot translate text exactly, or None if it can."""
    if tokenizer is None:
        return "has none: name the model by a directory or hub id that holds one"
    ids = tokenizer(PROBE, add_special_tokens=False).input_ids
    back = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return None if back == PROBE else f"has one that changes text: {PROBE!r} comes back as {back!r}"


def check_vocabularies(
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    target_tokenizer: PreTrainedTokenizerBase | None,
    draft_tokenizer: PreTrainedTokenizerBase | None,
) -> None:
    """Refuse a draft model whose token ids have other meanings than the target's.

    With both tokenizers, the tokens are compared and the embeddings' sizes do not matter. An id known to both has to be the same
    token, and a token known to both has to have the same id. At most :data:`VOCABULARY_SLACK` tokens may be known to only one
    tokenizer, such as special tokens added by a later release. Without both tokenizers, the embeddings' sizes are compared:
    they may differ by :data:`VOCABULARY_SLACK` (padding).

    Raises:
        ModelError: the vocabularies differ. With tokenizers, the error names the first different token and its ids.
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
