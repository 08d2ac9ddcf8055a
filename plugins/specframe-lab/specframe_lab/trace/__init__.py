"""Traces: record the contents of a KV cache round by round, and draw them as one page."""
