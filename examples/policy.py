"""A policy that learns from a reward at the very end: fetch the key, pass the door, reach the goal.

A move is two hard bits of a `StochasticBinary` unit, and no gradient passes through it. One call
of `score_loss` for a batch of games charges each game's outcome to all of its moves. The world is
small enough to be solved, so rewards are exact expectations, not averages over games.

    python examples/policy.py --figure out/mine.png    # under a minute on one core
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

import hardgate

# S: a start, K: the key, D: the door, shut without the key, G: the goal.
MAP = "###########", "#SSSS#....#", "#SSSSD....#", "#SSSS#....#", "#KSSS#...G#", "###########"
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left: bits 00, 01, 10, 11
WORTH = torch.tensor([2.0, 1.0])  # of the bits: their sum is the number of the move
MOST = 50  # moves in a game; to reach the goal with the t-th of them is worth 1 - t/MOST
EXPECTED, TOLERANCE = 0.696, 0.005  # the reward reached with --seed 0


class World(NamedTuple):
    """State i is cell i without the key, and state i + len(cells) the same cell with it."""

    leads: Tensor  # where each move leads, [states, 4]
    starts: Tensor
    goal: int
    cells: list[tuple[int, int]]


def world() -> World:
    """The map as a table."""
    letters = {(r, c): letter for r, line in enumerate(MAP) for c, letter in enumerate(line)}
    cells = [place for place, letter in letters.items() if letter != "#"]
    n, letter = len(cells), "".join(letters[place] for place in cells)
    leads = torch.empty(2 * n, 4, dtype=torch.long)
    for state in range(2 * n):
        row, column = cells[state % n]
        for move, (down, right) in enumerate(MOVES):
            to = (row + down, column + right)
            shut = letters[to] == "#" or (letters[to] == "D" and state < n)
            cell = state % n if shut else cells.index(to)
            leads[state, move] = cell + n * (state >= n or letter[cell] == "K")
    goal = n + letter.index("G")
    leads[goal] = goal  # the game is over
    return World(leads, torch.tensor([i for i in range(n) if letter[i] == "S"]), goal, cells)


def play(policy: nn.Module, games: int, world: World) -> Tensor:
    """The reward of each game, `[games]`: known when it is over, and 0 for most beginners."""
    state = world.starts[torch.randint(len(world.starts), (games,))]
    reward = torch.zeros(games)
    for t in range(1, MOST + 1):
        before, state = state, world.leads[state, (policy(state) @ WORTH).long()]
        reward[(state == world.goal) & (before != world.goal)] = 1 - t / MOST
    return reward


def expected_reward(world: World, moves: Tensor | None) -> float:
    """Of P(move | state), `[states, 4]`, or of the best policy; from the last move backward."""
    value = torch.zeros(len(world.leads))
    for t in range(MOST, 0, -1):
        outcome = torch.where(world.leads == world.goal, 1 - t / MOST, value[world.leads])
        value = outcome.amax(1) if moves is None else (moves * outcome).sum(1)
        value[world.goal] = 0.0  # it was paid on arrival
    return value[world.starts].mean().item()


def train(world: World, steps: int, games: int) -> tuple[list[float], Tensor]:
    """The reward of the deterministic policy every 5 steps, and its moves in the end."""
    states = torch.arange(len(world.leads))
    layers = nn.Embedding(len(states), 64), nn.Tanh(), nn.Linear(64, 2)
    policy = nn.Sequential(*layers, hardgate.StochasticBinary())
    optimiser = torch.optim.Adam(policy.parameters(), lr=0.01)
    curve: list[float] = []
    for step in range(steps + 1):
        if step % 5 == 0:
            with torch.no_grad():  # in evaluation mode a bit is 1 where its probability is above ½
                moves = one_hot((policy.eval()(states) @ WORTH).long(), 4).float()
            curve.append(expected_reward(world, moves))
            print(f"step {step:3}  reward {curve[-1]:.3f}", flush=True)
        losses = -play(policy.train(), games, world)
        optimiser.zero_grad()
        hardgate.score_loss(policy, losses).backward()  # one loss per game, charged to its moves
        optimiser.step()
    return curve, moves


def draw(path: Path, world: World, curve: list[float], moves: Tensor, facts: Any) -> None:
    """The reward by step, and the move from each cell without and with the key."""
    from matplotlib import pyplot as plt

    figure, (left, *maps) = plt.subplots(1, 3, figsize=(12, 3.2), layout="constrained")
    left.plot(range(0, 5 * len(curve), 5), curve, label="learnt")
    left.axhline(facts["optimal"], color="C2", linestyle="--", label="optimal")
    left.axhline(facts["random"], color="C3", linestyle=":", label="random")
    left.set(xlabel="training steps", ylabel="expected reward", ylim=(-0.03, 0.8))
    left.legend(loc="center right")
    row, column = torch.tensor(world.cells).T
    names = "without the key (the right room is out of reach)", "with the key"
    for axis, name, chosen in zip(maps, names, moves.chunk(2), strict=True):
        down, right = torch.tensor(MOVES)[chosen.argmax(1)].T
        axis.imshow([[letter == "#" for letter in line] for line in MAP], cmap="Greys", vmax=1.5)
        axis.quiver(column, row, right, -down, pivot="mid", color="C0", scale=16, width=0.008)
        for r, c in world.cells:
            axis.text(c - 0.42, r - 0.2, MAP[r][c].strip("S."), color="C3", fontsize=9)
        axis.set(title=name, xticks=[], yticks=[])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Source": json.dumps(facts)})
    plt.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Train, compare with the random and the optimal policy, draw; returns the facts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="of the weights and games (0)")
    parser.add_argument("--quick", action="store_true", help="a few seconds, for the tests")
    parser.add_argument("--figure", type=Path, default="out/example-policy.png", metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers into it")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    place = world()
    curve, moves = train(place, *((60, 128) if options.quick else (150, 256)))
    random, best = (expected_reward(place, m) for m in (torch.full_like(moves, 0.25), None))
    facts = {"seed": options.seed, "quick": options.quick, "reward": curve[-1]}
    facts |= {"random": random, "optimal": best}
    draw(options.figure, place, curve, moves, facts)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        records = json.loads(options.json.read_text()) if options.json.exists() else {}
        options.json.write_text(json.dumps({**records, "policy": facts}, indent=2) + "\n")
    print(f"random {random:.3f}, optimal {best:.3f} → {options.figure}")
    print(f"reward {curve[-1]:.3f}; expected of a full run {EXPECTED} ± {TOLERANCE} (seed 0)")
    return facts


if __name__ == "__main__":
    main()
