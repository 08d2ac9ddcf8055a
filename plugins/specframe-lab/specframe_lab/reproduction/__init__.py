"""Reproductions: measure the tables of a paper with any pair, next to the published figures."""
