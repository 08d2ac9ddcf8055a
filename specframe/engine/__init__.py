"""The decoding loop: requests, rows, rounds."""
