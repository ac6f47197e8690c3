"""Generated blocks in Markdown pages, between two markers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping


def embed(page: str, name: str, block: str) -> str:
    """`page` with `block` written anew between `<!-- name … -->` and `<!-- /name -->`."""
    head, begin, rest = page.partition(f"<!-- {name}:")
    marker, closing, rest = rest.partition("-->")
    _, end, tail = rest.partition(f"<!-- /{name} -->")
    if not (begin and closing and end):
        raise ValueError(
            f"expected the markers '<!-- {name}: … -->' and '<!-- /{name} -->' in the file."
        )
    return f"{head}{begin}{marker}{closing}\n{block}\n{end}{tail}"


def present(page: str, names: Iterable[str]) -> list[str]:
    """Those of the names for which the page has a marker."""
    return [name for name in names if f"<!-- {name}:" in page]


def write(page: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    """`page` with those blocks written anew that it has markers for: at least one."""
    for name in present(page, blocks) or list(blocks)[:1]:  # without any, embed raises
        page = embed(page, name, blocks[name]())
    return page
