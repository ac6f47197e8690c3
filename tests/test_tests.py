"""The tests' own rule: what two test files share is in `tests/support` or `tests/conftest.py`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

FILES = sorted((ROOT / "tests").rglob("*.py"))
# Also inside the code of a child process, which is a string here.
IMPORT = re.compile(r"^\s*(?:from|import)\s+tests\b.*?\btest_\w+", re.MULTILINE)


def imports_a_test(code: str) -> bool:
    return IMPORT.search(code) is not None


@pytest.mark.parametrize("path", FILES, ids=[str(p.relative_to(ROOT)) for p in FILES])
def test_no_file_imports_a_test(path: Path) -> None:
    assert not imports_a_test(path.read_text()), "move what is shared into tests/support"


@pytest.mark.parametrize(
    "code",
    [
        "from tests.kernels.test_kernels import Case",
        "from tests.units import test_claims",
        "import tests.units.test_claims as claims",
        'CHILD = """\nfrom tests.kernels.test_kernels import Case\n"""',
    ],
)
def test_such_an_import_is_seen(code: str) -> None:
    assert imports_a_test("import torch\n" + code)
    assert not imports_a_test(code.replace("test_", "of_"))
