"""Generated blocks in Markdown pages, between two markers."""

from __future__ import annotations

from collections.abc import Callable, Mapping


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


def write(page: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    """`page` with those blocks written anew that it has markers for: at least one."""
    present = [name for name in blocks if f"<!-- {name}:" in page]
    for name in present or list(blocks)[:1]:  # without any, embed says what was expected
        page = embed(page, name, blocks[name]())
    return page
