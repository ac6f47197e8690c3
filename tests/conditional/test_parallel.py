"""Two processes with half of a batch each take the step that one takes with the whole."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import hardgate
from hardgate import UNITS, AdaptiveL1, ConditionalMLP, Controller, FiringRate, KLTarget
from hardgate.estimators import NVIL, REBAR, RELAX, DoubleCV, Estimator, LinearCV
from hardgate_lab.reproduce.torchrun import leave
from tests.support.steering import steers

WORLD, BATCH, FEATURES, EXPERTS, STEPS = 2, 8, 6, 24, 3

CONTROLLERS: dict[str, Callable[[], Controller]] = {
    "KLTarget": lambda: KLTarget(0.1, weight=0.3),
    "AdaptiveL1": lambda: AdaptiveL1(0.1, band=0.0, weight=0.1),
    "FiringRate": lambda: FiringRate(0.1),
}
LEARNERS: dict[str, Callable[[], Estimator]] = {
    "LinearCV": LinearCV,
    "NVIL": NVIL,
    "REBAR": lambda: REBAR(learn_temperature=True),
    "RELAX": lambda: RELAX(learn_temperature=True),
}
CASES = [(unit, control) for unit in UNITS for control in CONTROLLERS if steers(control, unit)]


def _data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(STEPS, BATCH, FEATURES, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, 3, (STEPS, BATCH), generator=generator)


def _share(noise: Any, rank: int, world: int) -> Any:
    if isinstance(noise, tuple):
        return tuple(_share(z, rank, world) for z in noise)
    return noise.chunk(world)[rank]


def train(unit: str, control: str, rank: int, world: int, synchronise: bool = True) -> Any:
    """Three steps on this process's share; the noise is that of the whole batch, shared out."""
    torch.manual_seed(0)
    layer = ConditionalMLP(
        FEATURES, EXPERTS, 3, bottleneck=4, unit=UNITS[unit](), sparsity=CONTROLLERS[control]()
    ).double()
    inner = layer.gater.unit
    whole = torch.zeros(BATCH, EXPERTS, dtype=torch.float64)
    draws = [
        inner.sample_noise(whole, torch.Generator().manual_seed(step)) for step in range(STEPS)
    ]
    noise = iter([_share(draw, rank, world) for draw in draws])
    inner.sample_noise = lambda a, generator=None: next(noise)  # type: ignore[method-assign]
    if synchronise:
        hardgate.synchronise_(layer)
    model = DistributedDataParallel(layer) if world > 1 else layer
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.5)
    for x, y in zip(*_data(), strict=True):
        x, y = x.chunk(world)[rank], y.chunk(world)[rank]
        losses = nn.functional.cross_entropy(model(x), y, reduction="none")
        loss = losses.mean() + hardgate.score_loss(layer, losses) + hardgate.sparsity_loss(layer)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    hardgate.calibrate_thresholds(layer, [_data()[0].flatten(0, 1).chunk(world)[rank]], 0.2)
    return {name: tensor.clone() for name, tensor in layer.state_dict().items()}


def coefficient(rank: int, world: int) -> Tensor:
    """A learnt coefficient after one batch."""
    estimator = DoubleCV().double()
    a = torch.linspace(-1, 1, BATCH * 3, dtype=torch.float64).reshape(BATCH, 3)
    u = torch.rand(2, BATCH, 3, generator=torch.Generator().manual_seed(3))
    if world > 1:
        hardgate.synchronise_(estimator)
    own = a.chunk(world)[rank]
    estimator.estimate(lambda b: (b.sum(-1) - 1).square(), own, u.chunk(world, 1)[rank])
    return estimator.alpha.value().clone()


def learnt(name: str, rank: int, world: int) -> Any:
    """What an estimator has learnt after two batches; of the second one process has nothing."""
    estimator = LEARNERS[name]().double()
    if world > 1:
        hardgate.synchronise_(estimator)
    a = torch.linspace(-1, 1, BATCH * 3, dtype=torch.float64).reshape(BATCH, 3)
    context = a.cos() if estimator.uses_context else None
    for step, sizes in enumerate(((5, 3), (0, BATCH))):
        noise = estimator.sample_noise(a, torch.Generator().manual_seed(step))
        parts = noise if isinstance(noise, tuple) else (noise,)
        mine = slice(None) if world == 1 else slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        own = tuple(part[..., mine, :] for part in parts)
        estimator.estimate(
            lambda b: (b.sum(-1) - 1).square(),
            a[mine],
            own if isinstance(noise, tuple) else own[0],
            None if context is None else context[mine],
        )
    return {key: tensor.clone() for key, tensor in estimator.state_dict().items()}


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    results: dict[Any, Any] = {case: train(*case, rank, WORLD) for case in CASES}
    results["apart"] = train("StraightThrough()", "KLTarget", rank, WORLD, synchronise=False)
    results["coefficient"] = coefficient(rank, WORLD)
    results.update({name: learnt(name, rank, WORLD) for name in LEARNERS})
    torch.save(results, f"{folder}/{rank}.pt")
    leave(0)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    """What each of the two processes ended with."""
    folder = tmp_path_factory.mktemp("processes")
    spawn(worker, args=(str(folder),), nprocs=WORLD)
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one if one[name].numel())


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_two_processes_are_one(case: tuple[str, str], shared: list[dict[Any, Any]]) -> None:
    alone = train(*case, 0, 1)
    # ReinMax's control variate has the scale of what is back-propagated, which DDP divides later.
    control = "gater.unit.control.numerator"
    if control in alone:
        alone[control] *= WORLD
    # Buffers are fp32 in part (firing rates, λ): their rounding follows the order of the sums.
    assert difference(shared[0][case], alone) < 1e-6
    assert difference(shared[1][case], alone) < 1e-6


def test_without_synchronise_they_are_not(shared: list[dict[Any, Any]]) -> None:
    """The KL is not linear in the mean: DDP alone takes another step."""
    alone = train("StraightThrough()", "KLTarget", 0, 1)
    assert difference(shared[0]["apart"], alone) > 1e-4


def test_a_learnt_coefficient_is_that_of_all_samples(shared: list[dict[Any, Any]]) -> None:
    for result in shared:
        assert torch.allclose(result["coefficient"], coefficient(0, 1), rtol=1e-6)


@pytest.mark.parametrize("name", LEARNERS)
def test_networks_and_temperatures_learn_from_all_examples(
    name: str, shared: list[dict[Any, Any]]
) -> None:
    for result in shared:
        assert difference(result[name], learnt(name, 0, 1)) < 1e-6


@pytest.mark.parametrize("case", [("StraightThrough()", "KLTarget"), ("Rectifier()", "FiringRate")])
def test_nothing_changes_in_one_process(case: tuple[str, str]) -> None:
    """`synchronise_` without a process group: the same steps to the last bit."""
    assert difference(train(*case, 0, 1), train(*case, 0, 1, synchronise=False)) == 0


def test_a_group_of_one_changes_nothing(tmp_path: Path) -> None:
    """It runs the collective path."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/s", rank=0, world_size=1)
    try:
        case = ("StraightThrough()", "KLTarget")
        assert difference(train(*case, 0, 1), train(*case, 0, 1, synchronise=False)) < 1e-12
    finally:
        dist.destroy_process_group()
