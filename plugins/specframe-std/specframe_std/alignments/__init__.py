"""Alignments, one module each."""
