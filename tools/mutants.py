"""Plausible mistakes, put into a copy of the repository one at a time: do the tests see them?

    python -m tools.mutants            all of `tools/mutant_table.py`
    python -m tools.mutants fused lab  those whose name or file contains one of the words

For each it prints one of
    caught     a test failed
    SURVIVED   all named tests passed: write one that fails
    moved      the old text is no longer in the file (or more than once): anchor it again
    broken     the named tests do not pass without the mistake, or there are none
and at the end the rate. The exit code is 0 if every mistake was caught.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import cache
from pathlib import Path

from tools.mutant_table import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("hardgate", "hardgate_lab", "tests", "results", "docs", "examples", "README.md")
SECONDS = 600  # for the tests of one mistake; a test that hangs has seen it


def main(words: list[str]) -> int:
    """Try the mistakes that the words choose, and print what became of each."""
    chosen = [m for m in MUTANTS if not words or any(w in f"{m.name} {m.file}" for w in words)]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder)
        for name in (*COPIED, "pyproject.toml"):
            place = ROOT / name  # with times, so that the kernels' cache on disk holds
            (shutil.copytree if place.is_dir() else shutil.copy2)(place, copy / name)
        counts: Counter[str] = Counter()
        for mutant in chosen:
            start = time.monotonic()
            found = attempt(copy, mutant)
            counts[found] += 1
            where = f"{mutant.file}: {mutant.name}"
            print(
                f"{found:9}{time.monotonic() - start:4.0f} s  {where}  [{mutant.tests}]", flush=True
            )
    tried = counts["caught"] + counts["SURVIVED"]
    print(f"\ncaught {counts['caught']} of {tried}; {dict(counts)}")
    return int(counts["caught"] != len(chosen))


def attempt(copy: Path, mutant: Mutant) -> str:
    """Put the mistake into the copy, run its tests, and take it out again."""
    path = copy / mutant.file
    text = path.read_text() if path.exists() else ""
    if text.count(mutant.old) != 1:
        return "moved"
    if not passes(copy, mutant.tests):
        return "broken"
    stamp = path.stat()
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        code = run(copy, mutant.tests)
    finally:
        path.write_text(text)
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    return {0: "SURVIVED", 4: "broken", 5: "broken"}.get(code, "caught")


@cache
def passes(copy: Path, tests: str) -> bool:
    """Whether the tests pass on the copy as it is."""
    return run(copy, tests) == 0


def run(copy: Path, tests: str) -> int:
    """The exit code of pytest; -1 where it hangs."""
    files, _, keyword = tests.partition(" -k ")
    options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-o", "addopts="]
    options += ["-k", keyword] if keyword else []
    process = subprocess.Popen(
        ["nice", sys.executable, "-m", "pytest", *options, *files.split()],
        cwd=copy,
        # Python would take bytecode for fresh that is of the same size and second.
        env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return -1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
