"""Serving: requests that arrive over time, the moments of each, and the figures made of these."""
