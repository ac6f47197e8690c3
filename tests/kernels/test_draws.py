"""The random numbers of `hardgate.kernels.compiled.draws`, which large noise comes from."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from hardgate import noise
from hardgate.kernels import compiler
from tests.support.statistics import Z_LEVEL

LARGE = torch.empty(1000, 2001)  # 2 001 000: the last block is not full


def uniform(like: Tensor) -> Tensor:
    """As a gater draws it."""
    return noise.uniform(like, noise.kernel_generator(like))


def normal(like: Tensor) -> Tensor:
    return noise.normal(like, noise.kernel_generator(like))


DRAWS = {"uniform": uniform, "normal": normal}


def z(draws: Tensor, mean: float, variance: float) -> float:
    """How many standard errors the mean of the draws is from `mean`."""
    return abs(draws.mean().item() - mean) / math.sqrt(variance / draws.numel())


@pytest.fixture(params=DRAWS)
def draw(request: pytest.FixtureRequest) -> Tensor:
    torch.manual_seed(3)
    drawn = DRAWS[request.param](LARGE)
    assert drawn.shape == LARGE.shape
    assert drawn.dtype == torch.float32
    return drawn


def xoshiro(seed: int, n: int) -> Iterator[int]:
    """The first block's words as Blackman and Vigna define them, one generator after the other."""
    mask, z, words = 2**32 - 1, seed, []
    for _ in range(4 * 32):  # SplitMix64
        z = (z + 0x9E3779B97F4A7C15) % 2**64
        x = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        words.append((x ^ (x >> 31)) >> 32)

    def turn(x: int, k: int) -> int:
        return (x << k | x >> (32 - k)) & mask

    states = [words[lane::32] for lane in range(32)]
    for k in range(n):
        s = states[k % 32]
        yield (turn((s[0] + s[3]) & mask, 7) + s[0]) & mask
        t = s[1] << 9 & mask
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = turn(s[3], 11)


@pytest.mark.parametrize("n", [1, 31, 32, 33, 4095, 4096, 5000])
def test_the_numbers_are_xoshiros(n: int) -> None:
    """Bit for bit, also where a row or a block is not full; and nothing is written beyond."""
    seed, out = 2**62 + 12345, torch.full((n + 1,), -1.0)
    compiler.threads()
    compiler.run("uniform", torch.float32, out.data_ptr(), n, seed)
    of_block = min(n, 4096)
    assert out[:of_block].tolist() == [(word >> 8) * 2.0**-24 for word in xoshiro(seed, of_block)]
    assert (out[:n] >= 0).all()
    assert out[n] == -1
    drawn = torch.full((n + 1,), -9.0)
    compiler.run("normal", torch.float32, drawn.data_ptr(), n, seed)
    assert (drawn[:n].abs() < 8).all()
    assert drawn[n] == -9


def test_moments_of_the_uniform() -> None:
    torch.manual_seed(1)
    u = uniform(LARGE).double()
    for k in range(1, 7):  # E u^k = 1/(k+1)
        mean = 1 / (k + 1)
        assert z(u**k, mean, 1 / (2 * k + 1) - mean**2) < Z_LEVEL
    assert u.min() >= 0
    assert u.max() < 1


def test_moments_of_the_normal() -> None:
    torch.manual_seed(2)
    x = normal(LARGE).double()
    odd = {k: math.prod(range(k - 1, 0, -2)) for k in range(2, 13, 2)}  # E x^k = (k-1)!!
    for k in range(1, 7):
        mean = odd.get(k, 0)
        assert z(x**k, mean, odd[2 * k] - mean**2) < Z_LEVEL


@pytest.mark.parametrize("at", [-4.0, -2.5, -1.0, -0.1, 0.0, 0.3, 1.7, 3.0, 4.5])
def test_tails_of_the_normal(at: float) -> None:
    torch.manual_seed(4)
    p = 0.5 * math.erfc(-at / math.sqrt(2))
    below = (normal(LARGE) < at).double()
    assert z(below, p, p * (1 - p)) < Z_LEVEL
    if abs(at) < 1:  # the test would see another distribution
        assert z(below, p + 0.003, p * (1 - p)) > Z_LEVEL


@pytest.mark.parametrize("lag", [1, 2, 32, 64, 4096])
def test_neighbours_lanes_and_blocks_are_independent(draw: Tensor, lag: int) -> None:
    x = draw.flatten().double()
    x = (x - x.mean()) / x.std()
    products = x[lag:] * x[:-lag]
    assert z(products, 0.0, products.var().item()) < Z_LEVEL
    squares = (x[lag:] ** 2 - 1) * (x[:-lag] ** 2 - 1)
    assert z(squares, 0.0, squares.var().item()) < Z_LEVEL


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("kind", DRAWS)
def test_the_same_for_any_number_of_threads(kind: str) -> None:
    drawn = []
    for number in (1, 2):
        torch.set_num_threads(number)
        torch.manual_seed(5)
        drawn.append(DRAWS[kind](LARGE))
    assert torch.equal(*drawn)


@pytest.mark.parametrize("kind", DRAWS)
def test_the_seed_is_torchs(kind: str) -> None:
    torch.manual_seed(6)
    state = torch.get_rng_state()
    first, second = DRAWS[kind](LARGE), DRAWS[kind](LARGE)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(DRAWS[kind](LARGE), first)
    assert torch.equal(DRAWS[kind](LARGE), second)
    generator = noise.kernel_generator(LARGE)
    assert generator is not None
    draws = [noise.normal(LARGE, generator) for _ in range(2)]
    assert not torch.equal(*draws), "one generator gives a unit several draws"


@pytest.mark.parametrize("kind", DRAWS)
def test_few_numbers_and_other_modes_are_torchs(kind: str) -> None:
    few, by_torch = torch.empty(noise.FEW), {"uniform": torch.rand, "normal": torch.randn}[kind]
    torch.manual_seed(8)
    got = DRAWS[kind](few)
    torch.manual_seed(8)
    assert torch.equal(got, by_torch(noise.FEW))
    meta = DRAWS[kind](torch.empty(3 * noise.FEW, device="meta"))
    assert meta.is_meta
    mapped = torch.vmap(DRAWS[kind], randomness="different")(torch.empty(2, 2 * noise.FEW))
    assert not torch.equal(mapped[0], mapped[1])


def test_a_gater_draws_by_kernels_and_a_unit_by_itself_does_not() -> None:
    from hardgate import Gater, NoisyRectifier

    gater, x = Gater(4, 2 * noise.FEW, 2, NoisyRectifier()), torch.zeros(1, 4)
    torch.manual_seed(9)
    with torch.no_grad():
        drawn = gater(x)
        a = gater.pre_activation(x)
    torch.manual_seed(9)
    assert torch.equal(drawn, torch.relu(a + normal(a)))
    torch.manual_seed(9)
    by_torch = torch.relu(a + torch.randn(a.shape))
    torch.manual_seed(9)
    assert torch.equal(gater.unit(a), by_torch)
    assert not torch.equal(drawn, by_torch)


@pytest.mark.parametrize("device", ["meta"])
def test_a_default_device_elsewhere_does_not_matter(device: str) -> None:
    like = torch.empty(noise.FEW + 1)
    with torch.device(device):
        for draw in DRAWS.values():
            assert draw(like).device == like.device
