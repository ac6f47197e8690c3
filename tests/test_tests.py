"""The tests' own rule: what two test files share is in `tests/support` or `tests/conftest.py`."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT

# Also inside the code of a child process, which is a string here.
IMPORT = re.compile(r"^\s*(?:from|import)\s+tests\b.*?\btest_\w+", re.MULTILINE)


def imports_a_test(code: str) -> bool:
    return IMPORT.search(code) is not None


def test_no_file_imports_a_test() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    found = [str(path.relative_to(ROOT)) for path in files if imports_a_test(path.read_text())]
    assert len(files) > 50
    assert not found, "move what is shared into tests/support"


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
