"""How the kernels lay out what they keep: for Python, which allocates it, and for Numba."""

from __future__ import annotations

NARROW = 32  # outputs up to which rows are padded to whole vectors
BLOCK = 4  # units of a gate from which its rows serve several examples at once
LINE = 16  # numbers, of which a cache line holds no more
SLAB = 2**16  # numbers of the output that blocks add to at a time: they stay in the cache
LARGE = 2**23  # bytes of a gradient that no cache holds until somebody reads it


def at_once(K: int, B: int, n: int) -> bool:
    """Whether a chunk adds to all n columns of the output at once, not a second pass in strips."""
    return K < BLOCK or n <= NARROW or B * n <= SLAB


def length(slots: int, C: int, B: int) -> int:
    """Of a list; the rows of a block's lists must not all fall into one set of the cache."""
    return slots * C * B + LINE


def of_index(slots: int, C: int, B: int, n: int) -> int:
    """begin and off for each slot; example, gate and place in lists of length n.

    A line lies between two slots: threads that write into the same one wait for each other.
    """
    return slots * (C + B + 2 + LINE) + 3 * n


def of_values(K: int, n: int) -> int:
    """g, and H and S of the K units of a block, in lists of length n."""
    return (2 * K + 1) * n
