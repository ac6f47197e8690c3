"""Generated blocks in Markdown pages, between two markers."""

from __future__ import annotations


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
