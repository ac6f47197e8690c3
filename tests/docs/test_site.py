"""The documentation site: every snippet runs, every symbol has its entry, nothing is fetched."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import hardgate
from hardgate import Unit
from tests.support import claims
from tests.support.paths import ROOT
from tests.support.public_names import PUBLIC

PAGES = sorted((ROOT / "docs").glob("*.md"))
SNIPPETS = {page.name: page.read_text() for page in PAGES if "```python" in page.read_text()}
RUN_ELSEWHERE = {  # by a test of their own, here and in the other files
    "getting-started.md",
    "extending.md",
    "conditional.md",
    "estimators.md",
    "choosing.md",
}


def run(name: str) -> dict[str, Any]:
    """All Python of a page, top to bottom, as a reader would type it."""
    space: dict[str, Any] = {"__name__": "page"}
    for code in re.findall(r"```python\n(.*?)```", SNIPPETS[name], re.DOTALL):
        exec(compile(code, name, "exec"), space)
    return space


@pytest.mark.parametrize("name", sorted(SNIPPETS.keys() - RUN_ELSEWHERE))
def test_snippets_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(name)


def test_getting_started_is_short_and_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    longest = max(
        len(code.strip().splitlines())
        for code in re.findall(r"```python\n(.*?)```", SNIPPETS["getting-started.md"], re.DOTALL)
    )
    assert longest <= 40
    run("getting-started.md")
    error, from_the_loss, chance, on = map(int, re.findall(r"(\d+) %", capsys.readouterr().out))
    assert error <= 10
    assert from_the_loss <= 15 < chance
    assert 9 <= on <= 11
    assert hardgate.load(tmp_path / "layer.safetensors").training is False


def test_the_unit_of_the_page_on_extending_passes_the_claims(
    capsys: pytest.CaptureFixture[str],
) -> None:
    probit = run("extending.md")["Probit"]
    assert capsys.readouterr().out.split() == ["True", "True"]
    assert issubclass(probit, Unit)
    assert probit.law is not Unit.law
    unit = probit()
    assert (unit.unbiased, unit.binary, unit.off_gradient) == (False, True, "expert")
    claims.check_off_gradient(unit)
    claims.check_noise_is_independent(unit)
    for a in (-3.0, -0.5, 0.0, 2.0):
        claims.check_active_probability(unit, a)
        claims.check_mean(unit, a)


def test_the_reference_has_every_public_symbol() -> None:
    entries = {
        entry
        for page in (ROOT / "docs" / "reference").glob("*.md")
        for entry in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    }
    modules = {"baselines", "estimators", "functional", "noise"}
    tables = {"UNITS", "ESTIMATORS"}
    named = {entry.rpartition(".")[2] for entry in entries}
    assert named == {name for _, name in PUBLIC} - modules - tables
    for entry in entries:
        target: Any = hardgate
        for part in entry.split(".")[1:]:
            target = getattr(target, part)


class _Fetched(HTMLParser):
    """What a browser loads by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.addresses.append(named.get("src") or "")
        if tag == "link" and named.get("rel") != "canonical":
            self.addresses.append(named.get("href") or "")


def test_the_site_builds_and_fetches_nothing(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=False,
    )
    assert built.returncode == 0, built.stderr
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) >= len(PAGES)
    for page in pages:
        parser = _Fetched()
        parser.feed(page.read_text())
        assert not [a for a in parser.addresses if re.match(r"(https?:)?//", a)], page
    reference = (tmp_path / "reference" / "units" / "index.html").read_text()
    assert "back-propagated as if h were a" in reference  # docstrings, not names alone
