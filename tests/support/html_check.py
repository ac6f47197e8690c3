"""What a page must keep to: balanced elements, ids of its own, and nothing from the network."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_VOID = {"meta", "br", "hr", "img", "input", "link"}
_LOADS = {"script", "link", "img", "iframe", "object", "embed", "audio", "video", "base", "form"}


class Page(HTMLParser):
    """A parsed page, with a list of what is wrong with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.words: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self._open: list[str] = []
        self._places: list[int] = []  # in `elements`, of those that are open
        self._inside: list[tuple[str, int]] = []  # an element, and the place of its parent
        self._tables: list[list[list[list[str]]]] = []  # lines of cells of words
        self._ids: list[str] = []
        self._used: set[str] = set()
        self.feed(text)
        self.close()
        self.faults += [f"<{tag}> is not closed" for tag in self._open]
        self.faults += [f"id {i} twice" for i in set(self._ids) if self._ids.count(i) > 1]
        self.faults += [f"id {i} is not there" for i in self._used - set(self._ids)]
        if re.search(r"@import|url\(\s*['\"]?(?!#)", text):
            self.faults.append("a style loads something")
        self.faults += [
            f"{name} is used and not defined"
            for name in set(re.findall(r"var\((--[\w-]+)\)", text))
            if f"{name}:" not in text
        ]

    @property
    def text(self) -> str:
        """All words, white space made single, no-break spaces made plain."""
        return " ".join(" ".join(self.words).split())

    def table(self, number: int) -> list[list[str]]:
        """The cells of a table of the page, line by line."""
        return [[" ".join(" ".join(c).split()) for c in line] for line in self._tables[number]]

    def parents(self, tag: str) -> list[tuple[str, dict[str, str]]]:
        """The elements that elements of this kind are directly in."""
        return [self.elements[parent] for own, parent in self._inside if own == tag]

    def of_class(self, name: str) -> int:
        """How many elements are of a class."""
        return sum(name in given.get("class", "").split() for _, given in self.elements)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._element(tag, attrs)
        if tag not in _VOID:
            self._open.append(tag)
            self._places.append(len(self.elements) - 1)
        if tag == "table":
            self._tables.append([])
        elif tag == "tr":
            self._tables[-1].append([])
        elif tag in ("td", "th"):
            self._tables[-1][-1].append([])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._element(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.faults.append(f"</{tag}> closes another element")
        if self._places:
            self._places.pop()

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self.words.append(data)
        if {"td", "th"} & set(self._open):
            self._tables[-1][-1][-1].append(data)

    def _element(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if self._places:
            self._inside.append((tag, self._places[-1]))
        self.elements.append((tag, given))
        if tag in _LOADS:
            self.faults.append(f"<{tag}> is in the page")
        self.faults += [f"{name} is in the page" for name in given if name.startswith("on")]
        if "id" in given:
            self._ids.append(given["id"])
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            target = given.get(name, "")
            if target.startswith("#"):
                self._used.add(target[1:])
            elif target and not target.startswith("data:image/png;base64,"):
                self.faults.append(f"{name} leads to {target[:40]}")
        self._used |= set(re.findall(r"url\(#([^)]+)\)", " ".join(given.values())))
