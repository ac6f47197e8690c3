"""A problem of the user's own: what a file has to hold, and what is said where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hardgate_lab.cli import app
from hardgate_lab.compare.user_problem import UserProblemError, load

GOOD = """
\"\"\"Three coins.\"\"\"
import torch
logits = torch.tensor([0.1, -0.2, 0.3], requires_grad=True)
def f(b):
    return (b - 0.4).square().sum(-1)
"""

HEAD = "import torch\nlogits = torch.zeros(3)\n"

# The file, and what the message must say: what was expected, what came, what to type.
BROKEN = {
    "changes b": (
        HEAD + "def f(b):\n    b -= 0.5\n    return b.square().sum(-1)\n",
        ["leave b as it is", "changed in place", "Write b = 2 * b"],
    ),
    "has noise of its own": (
        HEAD + "def f(b): return torch.dropout(b, 0.5, True).sum(-1)\n",
        ["the same losses for the same b", "net.eval()"],
    ),
    "no logits": ("def f(b): return b.sum(-1)\n", ["expected logits", "nothing of that name"]),
    "a list of logits": ("logits = [0.0]\ndef f(b): return b.sum(-1)\n", ["tensor [D]", "a list"]),
    "a matrix of logits": (
        "import torch\nlogits = torch.zeros(2, 3)\ndef f(b): return b.sum(-1)\n",
        ["tensor [D]", "shape (2, 3)"],
    ),
    "infinite logits": (
        "import torch\nlogits = torch.tensor([float('inf')])\ndef f(b): return b.sum(-1)\n",
        ["finite logits", "inf"],
    ),
    "no f": (HEAD, ["expected a function f(b)", "nothing of that name", "def f(b)"]),
    "f is a number": (HEAD + "f = 3\n", ["expected a function", "a int"]),
    "f reduces everything": (
        HEAD + "def f(b): return b.sum()\n",
        ["one loss each, (2, 3)", "shape ()", "sum(-1)"],
    ),
    "f reduces nothing": (HEAD + "def f(b): return b\n", ["(2, 3)", "shape (2, 3, 3)"]),
    "f gives a number": (HEAD + "def f(b): return 1.0\n", ["one loss each", "a float"]),
    "f gives integers": (HEAD + "def f(b): return b.sum(-1).long()\n", ["floating point", "int64"]),
    "f gives nan": (HEAD + "def f(b): return b.sum(-1) * float('nan')\n", ["finite", "nan"]),
    "f raises": (
        HEAD + "def f(b):\n    raise KeyError('weights')\n",
        ["KeyError: 'weights' (line 4)", "last axis"],
    ),
    "f takes a matrix only": (
        HEAD + "def f(b):\n    n, d = b.shape\n    return b.sum(-1)\n",
        ["(2, 3, 3)", "ValueError", "line 4"],
    ),
    "the file raises": ("import torch\n1 / 0\n", ["ZeroDivisionError", "(line 2)", "by itself"]),
    "the file exits": ("raise SystemExit(3)\n", ["SystemExit: 3"]),
    "no Python": ("logits = = 3\n", ["SyntaxError", "(line 1)"]),
    "an import that is missing": ("import no_such_module\n", ["ModuleNotFoundError", "line 1"]),
}


def test_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "coins.py"
    path.write_text(GOOD)
    problem = load(path)
    assert problem.about == "Three coins"
    assert problem.logits.tolist() == pytest.approx([0.1, -0.2, 0.3])
    assert not problem.logits.requires_grad
    assert problem.f(torch.zeros(5, 3)).shape == (5,)


def test_what_lies_beside_the_file_can_be_imported(tmp_path: Path) -> None:
    import sys

    (tmp_path / "hardgate_test_weights.py").write_text("import torch\nW = torch.ones(3)\n")
    path = tmp_path / "uses.py"
    path.write_text(HEAD + "from hardgate_test_weights import W\ndef f(b): return b @ W\n")
    before = list(sys.path)
    assert load(path).f(torch.ones(2, 3)).tolist() == [3, 3]
    assert sys.path == before


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_with_what_was_expected(name: str, tmp_path: Path) -> None:
    text, words = BROKEN[name]
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(UserProblemError) as caught:
        load(path)
    message = str(caught.value)
    assert "broken.py" in message
    assert "expected" in message
    for word in words:
        assert word in message


def test_a_file_that_is_none(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.py", tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(UserProblemError, match="expected a Python file, got"):
            load(path)


def test_the_command_says_it_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(BROKEN["f raises"][0])
    result = CliRunner().invoke(app, ["compare", "--problem", str(path)], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "KeyError: 'weights'" in result.output
    assert "Traceback" not in result.output
