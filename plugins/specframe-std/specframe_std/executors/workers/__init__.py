"""Worker processes: each decodes with models of its own, and one process deals requests to them."""
