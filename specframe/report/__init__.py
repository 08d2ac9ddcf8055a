"""Comparisons: run a grid of cells under equal conditions, and report on it in tables, pictures and one page."""
