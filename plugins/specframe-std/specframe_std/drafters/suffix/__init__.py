"""Suffix decoding: what followed the row's last tokens, in its own text and in earlier responses, as often as it did."""
