"""Transformers' own generate with drafts for a batch, and without them."""

import torch

import specframe
from specframe.models.loading import load_model, load_tokenizer

PROMPTS = ["import os\n", "def read_lines(path):\n", "class Stack:\n    def __init__(self):\n"]


def main() -> None:
    model, draft = (load_model(name, name, torch.device("cpu"), torch.float32) for name in ("tiny", "tiny-draft"))
    tokenizer = load_tokenizer("tiny")
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.eos_token
    batch = tokenizer(PROMPTS, padding=True, return_tensors="pt")

    plain = model.generate(**batch, max_new_tokens=24, do_sample=False)
    with specframe.accelerate(model, draft) as handle:
        drafted = model.generate(**batch, max_new_tokens=24, do_sample=False)
    print(f"--- {handle.report.mean_acceptance_length:.1f} tokens a round")
    for text in tokenizer.batch_decode(drafted, skip_special_tokens=True):
        print(f"---\n{text}")
    print(f"--- the same tokens as without drafts: {torch.equal(plain, drafted)}")


if __name__ == "__main__":
    main()
