"""Noise sources z for h = f(a, z)  (Eq. 1), drawn in fp32 whatever the dtype of `a`.

fp32 because bf16 uniform noise is far too coarse: P(u < 0.001) would be 0.003.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from hardgate._base import torch_state
from hardgate._base.arguments import fraction
from hardgate.kernels import compiler

__all__ = [
    "Beta",
    "Binomial",
    "Gaussian",
    "Logistic",
    "Noise",
    "kernel_generator",
    "normal",
    "uniform",
]


FEW = 2**14  # numbers up to which torch's generator is as fast


class _KernelGenerator(torch.Generator):
    """A generator that asks `uniform` and `normal` to draw with the kernels."""


def kernel_generator(like: Tensor) -> torch.Generator | None:
    """What `hardgate.Gater` passes to `Unit.sample_noise`: None where torch's own is as fast.

    The kernels draw in parallel, which takes up to 15 % off a training step of 256 examples:
    torch's generator runs on one thread. The numbers differ from torch's for the same seed;
    `torch.manual_seed` governs both.
    """
    if torch_state.compiling() or like.numel() <= FEW or not compiler.usable(like):
        return None
    return _KernelGenerator("cpu").manual_seed(_seed(None))


def uniform(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """u ~ U[0, 1) in fp32, of the shape and on the device of `like`."""
    if isinstance(generator, _KernelGenerator):
        return _draw("uniform", like, generator)
    return torch.rand(like.shape, dtype=torch.float32, device=like.device, **_of(generator))


def normal(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """z ~ N(0, 1) in fp32, of the shape and on the device of `like`."""
    if isinstance(generator, _KernelGenerator):
        return _draw("normal", like, generator)
    return torch.randn(like.shape, dtype=torch.float32, device=like.device, **_of(generator))


def rectify(a: Tensor, scale: float) -> Tensor:
    """max(0, a + scale·z), z ~ N(0, 1), drawn and rectified in one pass of the kernels.

    Without a graph, for fp32 where `kernel_generator` is not None.
    """
    a, seed = a.contiguous(), _seed(None)
    out = torch.empty_like(a)
    compiler.threads()
    compiler.run("rectified", a.dtype, out.data_ptr(), a.data_ptr(), a.numel(), scale, seed)
    return out


def _draw(kind: str, like: Tensor, generator: torch.Generator | None) -> Tensor:
    out = like.new_empty(like.shape, dtype=torch.float32)
    compiler.threads()
    compiler.run(kind, out.dtype, out.data_ptr(), out.numel(), _seed(generator))
    return out


def _of(generator: torch.Generator | None) -> dict[str, Any]:
    """The keyword, left out where it is None: with it, torch compiles for one batch size only."""
    return {} if generator is None else {"generator": generator}


def _seed(generator: torch.Generator | None) -> int:
    seed = torch.empty((), dtype=torch.int64, device="cpu")
    return int(seed.random_(generator=generator).item())


class Noise(ABC):
    """A source of noise: how to draw it, its mean, and how it enters the unit.

    Facts as attributes: `mean` (it stands in for the noise at test time), `multiplicative`
    (False: added to `a` before the non-linearity; True: multiplied after it) and `nonzero`
    (the probability that multiplying by it leaves something).
    """

    multiplicative: bool = False
    nonzero: float = 1.0

    @property
    @abstractmethod
    def mean(self) -> float:
        """E[z]."""

    @abstractmethod
    def sample(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One draw of z in fp32, of the shape and on the device of `like`."""

    @abstractmethod
    def recurrence(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The three-term recurrence of the density's orthogonal polynomials, orders 0..n-1."""

    def quadrature(self, n: int = 8) -> tuple[list[float], list[float]]:
        """Gauss nodes and weights: E[g(z)] ≈ Σ_k w_k g(z_k), exact for degree below 2n."""
        diagonal, square = self.recurrence(n)
        off = np.sqrt(square[1:])
        nodes, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1))
        return nodes.tolist(), (vectors[0] ** 2).tolist()


class _Symmetric(Noise):
    """Zero-mean additive noise of a given scale, which the noisy rectifier needs integrated."""

    def __init__(self, scale: float = 1.0) -> None:
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(
                f"{type(self).__name__} noise expected a positive scale, got {scale!r}. "
                "For no noise at all use hardgate.Rectifier() or Sigmoid(noise=None)."
            )
        self.scale = float(scale)

    @property
    def name(self) -> str:
        """The word for it in `NoisyRectifier("gaussian")`."""
        return type(self).__name__.lower()

    @property
    def mean(self) -> float:
        return 0.0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.scale:g})"

    reach: float  # scales beyond which its density is zero in fp64

    @abstractmethod
    def density(self, z: Tensor) -> Tensor:
        """The density at scale 1."""

    @abstractmethod
    def positive(self, a: Tensor) -> Tensor:
        """P(a + z > 0)."""

    @abstractmethod
    def rectified(self, a: Tensor) -> Tensor:
        """E[max(0, a + z)]."""


def _normal_cdf(x: Tensor) -> Tensor:
    """Φ(x), right in the left tail, where torch.special.ndtr computes 1 + erf and cancels."""
    return 0.5 * torch.erfc(x * -math.sqrt(0.5))


class Gaussian(_Symmetric):
    """z ~ N(0, scale²): what the paper uses in practice."""

    reach = 9.0

    def density(self, z: Tensor) -> Tensor:
        return torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)

    def sample(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        z = normal(like, generator)
        return z if self.scale == 1.0 else z * self.scale

    def positive(self, a: Tensor) -> Tensor:
        return _normal_cdf(a / self.scale)

    def rectified(self, a: Tensor) -> Tensor:
        # Beyond ±40 the mean is 0 or a to the last digit, and the gradient of the formula 0·∞.
        a = a / self.scale
        x = a.clamp(-40, 40)
        # The two terms cancel in the far left tail; rounding must not make the mean negative.
        mean = torch.relu(x * _normal_cdf(x) + self.density(x))
        return self.scale * (mean + torch.relu(a - 40))

    def recurrence(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(n), self.scale**2 * np.arange(n, dtype=np.float64)


class Logistic(_Symmetric):
    """z with density σ(z)(1-σ(z)) / scale: P(a + z > 0) = σ(a), E = softplus(a)  (Prop. 1)."""

    reach = 36.0

    def density(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z) * torch.sigmoid(-z)

    def sample(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        u = uniform(like, generator).clamp(min=2.0**-25)  # rand() returns 0 once in 2²⁴ draws
        return torch.logit(u) * self.scale

    def positive(self, a: Tensor) -> Tensor:
        return torch.sigmoid(a / self.scale)

    def rectified(self, a: Tensor) -> Tensor:
        return softplus(a / self.scale, threshold=60.0) * self.scale

    def recurrence(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        k = np.arange(n, dtype=np.float64)
        return np.zeros(n), (math.pi * self.scale) ** 2 * k**4 / (4 * k**2 - 1)


class Beta(Noise):
    """The skewed noise of App. A.2: c·Beta(α, β), its mode at `rate`, σ(c·mode) = rate.

    α = 1 + rate(β-1)/(1-rate) puts the mode at `rate`; c = logit(rate)/rate. Drawn from a table
    of 2¹⁶ equally likely bins, each at its conditional mean, so E[z] is exact; torch's own Beta
    sampler is some twenty times slower.

    Args:
        beta: β > 1; the paper's best for STS is 40.1.
        rate: the sparsity target, in (0, 1).

    Example:
        >>> noise = Beta(40.1, rate=0.1)
        >>> f"alpha {noise.alpha:.3f}, scale {noise.scale:.2f}, mean {noise.mean:.3f}"
        'alpha 5.344, scale -21.97, mean -2.584'
    """

    _BINS = 2**16

    def __init__(self, beta: float = 40.1, rate: float = 0.1) -> None:
        if not (math.isfinite(beta) and beta > 1):
            raise ValueError(f"Beta expected beta > 1 (the paper: 1.1 to 160.1), got {beta!r}.")
        self.beta, self.rate = float(beta), fraction("rate", rate)
        self.alpha = 1 + rate * (beta - 1) / (1 - rate)
        self.scale = math.log(rate / (1 - rate)) / rate
        self._table = self._bin_means()

    def __repr__(self) -> str:
        return f"Beta({self.beta:g}, rate={self.rate:g})"

    @property
    def mean(self) -> float:
        return self.scale * self.alpha / (self.alpha + self.beta)

    def sample(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        table = self._table.to(like.device)
        bins = torch.randint(self._BINS, like.shape, device=like.device, **_of(generator))
        return table[bins]

    def _bin_means(self) -> Tensor:
        # Around the mode, where the density lives however large β is; the rest is below 1e-16.
        spread = 12 / math.sqrt(self.alpha + self.beta)
        mode = (self.alpha - 1) / (self.alpha + self.beta - 2)
        x = np.linspace(max(0.0, mode - spread), min(1.0, mode + spread), 2**18 + 1)
        x = 0.5 * (x[1:] + x[:-1])
        log_density = (self.alpha - 1) * np.log(x) + (self.beta - 1) * np.log1p(-x)
        mass = np.exp(log_density - log_density.max())
        mass /= mass.sum()
        below = np.concatenate([[0.0], np.cumsum(mass)])  # F(x)
        moment = np.concatenate([[0.0], np.cumsum(mass * x)])  # ∫ x dF
        edges = np.interp(np.linspace(0, 1, self._BINS + 1), below, moment)
        return torch.from_numpy(self.scale * self._BINS * np.diff(edges)).float()

    def recurrence(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        # Jacobi polynomials on [-1, 1] with weight (1-y)^(β-1) (1+y)^(α-1), then y → c(1+y)/2.
        p, q = self.beta - 1, self.alpha - 1
        k = np.arange(n, dtype=np.float64)
        s = 2 * k + p + q
        with np.errstate(divide="ignore", invalid="ignore"):
            diagonal = (q**2 - p**2) / (s * (s + 2))
            square = 4 * k * (k + p) * (k + q) * (k + p + q) / (s**2 * (s + 1) * (s - 1))
        diagonal[0] = (q - p) / (p + q + 2)
        square[1:2] = 4 * (1 + p) * (1 + q) / ((2 + p + q) ** 2 * (3 + p + q))
        return self.scale * (1 + diagonal) / 2, (self.scale / 2) ** 2 * square


class Binomial(Noise):
    """Multiplicative masking noise (dropout): z = 1 with probability `keep`, else 0  (§2).

    Multiplied after the non-linearity; at test time the mean `keep` stands in for it.
    """

    multiplicative = True

    def __init__(self, keep: float = 0.5) -> None:
        if not 0 < keep <= 1:
            raise ValueError(f"Binomial expected keep in (0, 1], like 0.5, got {keep!r}.")
        self.keep = self.nonzero = float(keep)

    def __repr__(self) -> str:
        return f"Binomial(keep={self.keep:g})"

    @property
    def mean(self) -> float:
        return self.keep

    def sample(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return (uniform(like, generator) < self.keep).float()

    def recurrence(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        if n > 2:
            raise ValueError("Binomial noise has two values: ask for quadrature(2).")
        p = self.keep
        return np.array([p, 1 - p])[:n], np.array([0.0, p * (1 - p)])[:n]
