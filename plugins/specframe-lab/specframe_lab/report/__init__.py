"""The report of a comparison: figures drawn, one page, one PDF."""
