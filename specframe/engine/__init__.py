"""The loop and what feeds it: requests, rows, rounds."""
