"""Built-in prompts, for a run without prompts."""

from __future__ import annotations

_BUILT_IN = '''\
import os
import sys

=====
def read_lines(path):
=====
def is_palindrome(text):
    """Return True if text reads the same both ways."""
=====
class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
=====
for name in sorted(os.listdir(path)):
    full = os.path.join(path, name)
    if os.path.isdir(full):
=====
def parse_header(line):
    """Split a header line into its name and value.

    Raise ValueError if there is no colon.
    """
    if ":" not in line:
=====
class Node:
    def __init__(self, value, next=None):
        self.value = value
        self.next = next

    def __repr__(self):
=====
import unittest

class TestQueue(unittest.TestCase):
    def setUp(self):
        self.queue = Queue(maxsize=4)

    def test_empty(self):
        self.assertTrue(self.queue.empty())

    def test_put(self):
'''
BUILT_IN = tuple(text.rstrip("\n") for text in _BUILT_IN.split("=====\n"))
"""Starts of Python code, short and long, for a run that was given no prompts."""
