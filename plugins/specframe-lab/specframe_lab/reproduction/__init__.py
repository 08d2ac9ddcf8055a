"""Reproductions: measure the tables of a paper with any pair, beside the published figures."""
