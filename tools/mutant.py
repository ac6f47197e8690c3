"""What a mistake of `tools/mutants.py` is: a name, the file, old text, new text, tests.

The old text occurs once in its file. The tests are files, and after ` -k ` a choice among them.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One mistake."""

    name: str
    file: str
    old: str
    new: str
    tests: str
