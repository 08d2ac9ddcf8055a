"""Prompts of commands: from arguments, files of many formats and data sets."""
