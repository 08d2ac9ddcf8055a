"""Responses of earlier runs in a file: a line that says what it is, and one line for each response."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable

from specframe.errors import OptionError, literal
from specframe.files import contents
from specframe_std.output_file import MARK, Output

HEAD = json.dumps({"suffixes of responses": MARK})
"""The first line. A file that has another is not read, and not replaced."""


class History:
    """Up to ``most`` responses, those of a file among them.

    Raises:
        OptionError: the file cannot be read or written, is empty, or holds something else.
    """

    def __init__(self, name: str, most: int) -> None:
        self._output = Output(name, "memory")
        self._output.refuse_foreign()
        self.responses = collections.deque(self._read() if self._output.exists() else (), maxlen=most)
        self._written = True
        """Whether the file holds them."""

    def _read(self) -> Iterable[list[int]]:
        try:
            head, *lines = contents(self._output.path).decode().splitlines() or [""]
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"memory: {self._output.name} cannot be read: {error}") from error
        if head != HEAD:
            got = f"got {head[:60]!r}" if head else "and the file is empty"
            raise OptionError(
                f"memory: {self._output.name}: expected the first line {HEAD}, {got}: name another file, or delete it"
            )
        for number, line in enumerate(lines, 2):
            yield self._response(number, line)

    def _response(self, number: int, line: str) -> list[int]:
        try:
            found = json.loads(line)
        except ValueError:
            found = line
        if not isinstance(found, list) or not all(type(token) is int and token >= 0 for token in found):
            raise OptionError(
                f"memory: {self._output.name}, line {number}: expected a list of token ids, got {literal(found)}"
            )
        return found

    def require(self, vocabulary: int) -> None:
        """Raise :class:`OptionError` where a response has a token that the target has not."""
        largest = max((max(response, default=0) for response in self.responses), default=0)
        if largest >= vocabulary:
            raise OptionError(
                f"memory: {self._output.name} has the token {largest}: expected responses of a target with {vocabulary:,} tokens"
            )

    def add(self, response: list[int]) -> None:
        """Take a response."""
        self.responses.append(response)
        self._written = False

    def write(self) -> None:
        """Write the responses to the file, as a whole, if there are new ones."""
        if not self._written:
            self._output.refuse_foreign()
            self._output.replace("".join(f"{line}\n" for line in (HEAD, *map(json.dumps, self.responses))))
            self._written = True
