"""Prompts of commands: from arguments, files of many formats and data sets."""

from specframe.text.prompts.builtin import BUILT_IN
from specframe.text.prompts.entries import KEYS
from specframe.text.prompts.files import from_arguments, from_file, open_prompts
from specframe.text.prompts.lazy import Prompts
from specframe.text.prompts.prompt import Given, Prompt, text_fault

__all__ = [
    "BUILT_IN",
    "KEYS",
    "Given",
    "Prompt",
    "Prompts",
    "from_arguments",
    "from_file",
    "open_prompts",
    "text_fault",
]
