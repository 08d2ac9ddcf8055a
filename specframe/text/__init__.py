"""From prompts to tokens and from logits to text: sampling, stopping, streaming."""
