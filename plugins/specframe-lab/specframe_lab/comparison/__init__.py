"""Comparisons: run a grid of cells under equal conditions, keep the results, and derive figures from them."""
