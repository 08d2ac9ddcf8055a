"""Options that commands share: those of a pipeline, files of options, and an early check of names."""
