"""Multi-token prediction: layers that were trained with a target and are in its own checkpoint."""
