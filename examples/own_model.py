"""Decode token ids with transformers models that are already loaded. The ones here are random, made on the spot."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specframe import Pipeline


def random_llama(layers: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config)


def main() -> None:
    target, draft = random_llama(layers=2), random_llama(layers=1)
    pipe = Pipeline(target=target, drafter=draft, draft_length=3)
    prompts = [[1, 17, 42], [1], [1, 5, 5, 5, 300, 301]]
    for result in pipe.generate(prompts, max_new_tokens=16):
        print(result.index, result.finish_reason, result.token_ids)


if __name__ == "__main__":
    main()
