"""The house stands: one way down in both packages, read from the imports in their source."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

# The library from bottom to top. A module imports from its own place or from below, never from
# above, and never from another place of the same line.
ORDER = (
    ("_base",),
    ("kernels",),
    ("noise", "enumeration", "functional"),
    ("learning",),
    ("units",),
    ("sparsity", "estimators"),
    ("conditional",),
    ("saving", "synchronise"),
)
MOST_FLOORS = 15
LEVEL = {place: level for level, places in enumerate(ORDER) for place in places}
ENTRANCES = ("hardgate", "hardgate.__main__")  # what a user imports: they may import everything
# Attributes of tensors, modules and parameters that torch keeps private.
PRIVATE = (
    *("_version", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_post_accumulate_grad_hooks", "_parameters", "_buffers", "_modules"),
)
TORCH_STATE = "hardgate._base.torch_state"  # the one file that may use them

Imports = dict[str, set[str]]
parsed = cache(ast.parse)


def module(path: Path) -> str:
    """The name of the module in a file."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


class House:
    """The modules of both packages, and which imports which.

    Args:
        planted: text to add at the end of a file, by its path; makes the file if it is not there.
    """

    def __init__(self, planted: Mapping[str, str] | None = None) -> None:
        texts = {
            path.relative_to(ROOT): path.read_text()
            for package in ("hardgate", "hardgate_lab")
            for path in sorted((ROOT / package).rglob("*.py"))
        }
        for file, text in (planted or {}).items():
            texts[Path(file)] = f"{texts.get(Path(file), '')}\n{text}\n"
        self.paths = {module(path): path for path in texts}
        self.trees = {module(path): parsed(text) for path, text in texts.items()}
        self.imports: Imports = {name: set(self._imported(name)) for name in self.paths}

    def _imported(self, name: str) -> Iterator[str]:
        for node in ast.walk(self.trees[name]):  # also inside functions
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                origin = self._absolute(name, node)
                names = [f"{origin}.{alias.name}" for alias in node.names]
                found = [each if each in self.paths else origin for each in names]
            else:
                continue
            yield from (each for each in found if each in self.paths and each != name)

    def _absolute(self, name: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        is_package = self.paths[name].name == "__init__.py"
        base = name.split(".")[: len(name.split(".")) - node.level + is_package]
        return ".".join([*base, *([node.module] if node.module else [])])


@pytest.fixture(scope="module")
def house() -> House:
    return House()


def cycle(imports: Imports) -> list[str]:
    """Some modules that import each other in a ring, or none."""
    done: set[str] = set()

    def search(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        for other in sorted(imports[name]):
            if found := search(other, [*way, name]):
                return found
        done.add(name)
        return []

    for name in imports:
        if found := search(name, []):
            return found
    return []


def floors(imports: Imports, package: str) -> int:
    """How many floors a package has: a module is one above the highest that it imports."""
    level: dict[str, int] = {}

    def floor(name: str) -> int:
        if name not in level:
            own = [other for other in imports[name] if other.split(".")[0] == package]
            level[name] = 1 + max(map(floor, own), default=-1)
        return level[name]

    return 1 + max(floor(name) for name in imports if name.split(".")[0] == package)


def upward(imports: Imports) -> list[str]:
    """Imports of the library that do not point down."""
    wrong = []
    for name, others in imports.items():
        if name in ENTRANCES or name.split(".")[0] != "hardgate":
            continue
        place = name.split(".")[1]
        for other in sorted(others):
            above = other in ENTRANCES or (
                other.split(".")[1] != place and LEVEL[other.split(".")[1]] >= LEVEL[place]
            )
            if above:
                wrong.append(f"{name} imports {other}")
    return wrong


def between_rooms(imports: Imports) -> list[str]:
    """Imports from one room of the lab into another, or from rig into a room."""
    wrong = []
    for name, others in imports.items():
        parts = name.split(".")
        if parts[0] != "hardgate_lab" or name in ("hardgate_lab.cli", "hardgate_lab.__main__"):
            continue
        lab = [other for other in sorted(others) if other.startswith("hardgate_lab.")]
        allowed = (*parts[1:2], "rig")
        wrong += [f"{name} imports {o}" for o in lab if o.split(".")[1] not in allowed]
    return wrong


def private_names(tree: ast.Module) -> Iterator[str]:
    """What a file uses of torch that torch does not promise to keep."""
    torchs = {"torch"}  # names that stand for torch or one of its modules
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            torchs |= {a.asname or a.name for a in node.names if a.name.split(".")[0] == "torch"}
            words = [word for a in node.names for word in a.name.split(".")]
            torch = any(a.name.split(".")[0] == "torch" for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            words = [*(node.module or "").split("."), *(a.name for a in node.names)]
            torch = not node.level and words[0] == "torch"
            torchs |= {a.asname or a.name for a in node.names if torch and a.name.islower()}
        elif isinstance(node, ast.Attribute):
            words, root = [node.attr], node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            torch = isinstance(root, ast.Name) and root.id in torchs
            if node.attr in PRIVATE and not (isinstance(root, ast.Name) and root.id == "self"):
                yield node.attr
                continue
        else:
            continue
        if torch:
            yield from (w for w in words if w.startswith("_") and not w.startswith("__"))


def test_nothing_imports_in_a_ring(house: House) -> None:
    assert cycle(house.imports) == []


def test_the_library_does_not_import_the_lab(house: House) -> None:
    names = [n for n in house.imports if n.split(".")[0] == "hardgate"]
    assert [n for n in names if any(o.startswith("hardgate_lab") for o in house.imports[n])] == []


def test_every_place_of_the_library_has_its_level(house: House) -> None:
    places = {n.split(".")[1] for n in house.paths if n.startswith("hardgate.")}
    assert places - {"__main__"} == set(LEVEL)


def test_the_library_imports_downwards_only(house: House) -> None:
    assert upward(house.imports) == []


def test_the_library_has_few_floors(house: House) -> None:
    assert floors(house.imports, "hardgate") <= MOST_FLOORS


def test_rooms_of_the_lab_meet_only_in_rig(house: House) -> None:
    assert between_rooms(house.imports) == []


def test_no_file_name_occurs_twice(house: House) -> None:
    counts = Counter(path.name for path in house.paths.values())
    names = {name for name, count in counts.items() if count > 1}
    assert names - {"__init__.py", "__main__.py"} == set()


def test_private_names_of_torch_are_in_one_file(house: House) -> None:
    found = {name: sorted(set(private_names(tree))) for name, tree in house.trees.items()}
    assert found[TORCH_STATE]  # else the search would find nothing anywhere
    assert {n: words for n, words in found.items() if words and n != TORCH_STATE} == {}


PLANTED = {  # a file, what is added to it, and which rule then breaks
    "ring": ("hardgate/_base/arguments.py", "from hardgate.units._unit import Unit"),
    "lab": ("hardgate/noise.py", "import hardgate_lab.rig.lock"),
    "upward": ("hardgate/kernels/op.py", "def f():\n    from hardgate.units import _unit"),
    "beside": ("hardgate/functional/neurons.py", "from hardgate.noise import Gaussian"),
    "room": ("hardgate_lab/vae/elbo.py", "from hardgate_lab.reproduce import settings"),
    "rig": ("hardgate_lab/rig/lock.py", "from hardgate_lab.toy.toy_problem import Toy"),
    "twice": ("hardgate_lab/toy/lock.py", ""),
    "private": ("hardgate_lab/toy/toy_problem.py", "torch._foreach_norm([])"),
    "version": ("hardgate_lab/toy/toy_problem.py", "def f(b):\n    return b._version"),
    "import": ("hardgate_lab/toy/toy_problem.py", "from torch._C import _functorch"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_mistake_is_found(kind: str, house: House) -> None:
    file, text = PLANTED[kind]
    broken, name = House({file: text}), module(Path(file))
    checks = {
        "ring": lambda: bool(cycle(broken.imports)),
        "lab": lambda: "hardgate_lab.rig.lock" in broken.imports["hardgate.noise"],
        "upward": lambda: any("kernels.op imports" in w for w in upward(broken.imports)),
        "beside": lambda: f"{name} imports hardgate.noise" in upward(broken.imports),
        "room": lambda: len(between_rooms(broken.imports)) > len(between_rooms(house.imports)),
        "rig": lambda: any("rig.lock imports" in wrong for wrong in between_rooms(broken.imports)),
        "twice": lambda: [p.name for p in broken.paths.values()].count("lock.py") == 2,
        "private": lambda: "_foreach_norm" in private_names(broken.trees[name]),
        "version": lambda: "_version" in private_names(broken.trees[name]),
        "import": lambda: {"_C", "_functorch"} <= set(private_names(broken.trees[name])),
    }
    assert checks[kind]()
