"""The scripts in `examples/`: each runs, reaches what it claims, and its page shows its record."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import hardgate
from examples import deep_stack, policy, semantic_hashing, skip_rnn
from hardgate_lab.rig.mnist import Dataset, load
from tests.support.paths import ROOT
from tests.support.statistics import Z_LEVEL, Z_WRONG, largest_z
from tests.support.tiny_runs import files

SCRIPTS: dict[str, ModuleType] = {
    "deep_stack": deep_stack,
    "semantic_hashing": semantic_hashing,
    "skip_rnn": skip_rnn,
    "policy": policy,
}
NUMBERS = {  # the one with an expectation first; how the page writes each
    "deep_stack": {"error": "{:.2f} %"},
    "semantic_hashing": {"precision": "{:.3f}", "cut": "{:.3f}", "real": "{:.3f}"},
    "skip_rnn": {
        "accuracy": "{:.3f}",
        "always": "{:.3f}",
        "updates": "{:.1f}",
        "longest": "{:.3f}",
        "longest_always": "{:.3f}",
    },
    "policy": {"reward": "{:.3f}", "optimal": "{:.3f}", "random": "{:.3f}"},
}
RECORDS: dict[str, dict[str, Any]] = json.loads((ROOT / "results" / "examples.json").read_text())
PAGE = (ROOT / "docs" / "examples.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten patterns under noise in place of the digits."""
    return files(tmp_path_factory.mktemp("examples") / "idx", n=2400)


@pytest.fixture(scope="module")
def data(folder: Path) -> Dataset:
    return load("mnist", folder, say=lambda _: None)


def run(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> Any:
    """The facts of a quick run, after a look at all that it leaves."""
    figure, record = tmp_path / "new" / "figure.png", tmp_path / "all.json"
    record.write_text('{"another": {}}')
    facts = SCRIPTS[name].main(["--quick", f"--figure={figure}", f"--json={record}", *more])
    assert json.loads(record.read_text()) == {"another": {}, name: facts}
    with Image.open(figure) as image:
        assert json.loads(image.info["Source"]) == facts
    *_, last = capsys.readouterr().out.splitlines()
    (key, style), *_ = NUMBERS[name].items()
    assert last.startswith(f"{key} {style.format(facts[key])}; expected of a full run ")
    return facts


def test_the_numbers_go_into_a_new_folder(tmp_path: Path) -> None:
    record = tmp_path / "new" / "all.json"
    facts = policy.main(["--quick", f"--figure={tmp_path / 'f.png'}", f"--json={record}"])
    assert json.loads(record.read_text()) == {"policy": facts}


def test_the_stack_is_sparse_in_every_layer(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = run("deep_stack", tmp_path, capsys, f"--data={folder}")
    assert all(abs(density - deep_stack.RATE) < 0.02 for density in facts["density"])
    assert sum(facts["done"]) < 0.3 * sum(facts["dense"])  # gaters included
    assert facts["error"] < 45  # half of what guessing has


def test_a_stack_that_did_not_learn_guesses(data: Dataset) -> None:
    torch.manual_seed(0)
    model = deep_stack.stack()
    hardgate.calibrate_thresholds(model, [data.train.x])
    assert deep_stack.error(model, data.test.x, data.test.y) > 60


def test_the_binary_code_finds_what_is_alike(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = run("semantic_hashing", tmp_path, capsys, f"--data={folder}")
    assert facts["precision"] > 0.25  # chance is 0.1
    assert 0 < facts["cut"] <= 1
    assert 0 < facts["real"] <= 1


def test_precision_is_that_of_a_code_with_a_known_answer(data: Dataset) -> None:
    labels = torch.eye(10)

    class Oracle(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            part = data.train if len(x) == len(data.train.y) else data.test
            return labels[part.y]

    class Blind(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.rand(len(x), 32).round()

    torch.manual_seed(0)
    n = len(data.test.y)
    exact = semantic_hashing.precision(nn.Sequential(Oracle()), data, n)
    blind = semantic_hashing.precision(nn.Sequential(Blind()), data, n)
    assert exact.min() == 1.0
    chance = (data.train.y == data.test.y[:, None]).float().mean(1)
    assert largest_z(blind - chance, 0.0) < Z_LEVEL
    assert largest_z(blind, 1.0) > Z_WRONG


def test_the_network_that_skips_remembers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = run("skip_rnn", tmp_path, capsys)
    assert facts["updates"] < skip_rnn.LENGTHS[0] / 2
    assert facts["accuracy"] > 2 / skip_rnn.SYMBOLS


def test_an_update_that_is_skipped_leaves_the_state_and_is_not_computed() -> None:
    torch.manual_seed(0)
    unit = hardgate.StraightThrough()
    model = skip_rnn.SkipRNN(hardgate.Gater(skip_rnn.SYMBOLS + 1, 1, 4, unit, rate=0.5)).eval()
    x, _ = skip_rnn.sequences(50, 30)
    rows: list[int] = []
    model.cell.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    with torch.no_grad():
        scores, updates = model(x)
        assert sum(rows) == updates.sum() > 0
        unit.threshold.fill_(-1e9)  # nothing is skipped: torch's own network
        state = nn.GRU(skip_rnn.SYMBOLS + 1, skip_rnn.HIDDEN)
        state.load_state_dict({f"{k}_l0": v for k, v in model.cell.state_dict().items()})
        always = model.out(state(x)[0][-1]).unflatten(-1, scores.shape[1:])
        torch.testing.assert_close(model(x)[0], always)
        assert not torch.allclose(scores, always, atol=1e-3)
        unit.threshold.fill_(1e9)  # all are: nobody remembers anything
        scores, updates = model(x)
    assert updates.sum() == 0
    assert len(scores.unique(dim=0)) == 1


def test_the_policy_finds_the_goal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = run("policy", tmp_path, capsys)
    assert facts["reward"] > 50 * facts["random"]
    assert facts["reward"] <= facts["optimal"] + 1e-6


def test_a_policy_that_is_charged_for_the_games_of_others_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    play = policy.play
    monkeypatch.setattr(policy, "play", lambda *args: play(*args).flip(0))
    curve, _ = policy.train(policy.world(), 60, 128)
    assert curve[-1] < 0.05


def test_rewards_are_those_of_games_that_are_played() -> None:
    torch.manual_seed(0)
    world = policy.world()
    coin = nn.Sequential(nn.Embedding(len(world.leads), 2), hardgate.StochasticBinary())
    nn.init.zeros_(next(coin.parameters()))
    exact = policy.expected_reward(world, torch.full((len(world.leads), 4), 0.25))
    with torch.no_grad():
        played = policy.play(coin, 40_000, world)
    assert (played > 0).sum() > 20
    assert largest_z(played[:, None], exact) < Z_LEVEL
    assert largest_z(played[:, None], 3 * exact) > Z_WRONG


def test_the_best_policy_takes_the_shortest_way() -> None:
    world = policy.world()
    moves = []
    for start in world.starts.tolist():
        reached, t = {start}, 0
        while world.goal not in reached:
            reached, t = {to for state in reached for to in world.leads[state].tolist()}, t + 1
        moves.append(t)
    best = 1 - sum(moves) / len(moves) / policy.MOST
    assert policy.expected_reward(world, None) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_teaches(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        SCRIPTS[name].main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert f"python examples/{name}.py" in said
    assert all(option in said for option in ("--quick", "--seed", "--figure", "--json"))


def test_a_script_runs_from_anywhere(tmp_path: Path) -> None:
    line = [sys.executable, str(ROOT / "examples" / "deep_stack.py"), f"--data={tmp_path}"]
    ended = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "Write --data DIR with the folder that holds them" in ended.stderr


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_is_short(name: str) -> None:
    assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) < 150


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_record_is_what_the_script_expects(name: str) -> None:
    facts, script = RECORDS[name], SCRIPTS[name]
    assert (facts["seed"], facts["quick"]) == (0, False)
    (key, _), *_ = NUMBERS[name].items()
    assert abs(facts[key] - script.EXPECTED) <= script.TOLERANCE


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_page_shows_the_record(name: str) -> None:
    (section,) = (part for part in PAGE.split("\n## ") if f"examples/{name}.py" in part)
    facts = RECORDS[name]
    for key, style in NUMBERS[name].items():
        assert style.format(facts[key]) in section, key
    assert f"{SCRIPTS[name].EXPECTED} ± {SCRIPTS[name].TOLERANCE}" in section
    if name == "deep_stack":
        assert f"{100 * sum(facts['done']) / sum(facts['dense']):.0f} %" in section
        shares = [f"{100 * density:.1f}" for density in facts["density"]]
        assert ", ".join(shares) in section
    (figure,) = re.findall(r"!\[[^]]*\]\((figures/example-[^)]+)\)", section)
    with Image.open(ROOT / "docs" / figure) as image:
        assert json.loads(image.info["Source"]) == facts, "draw it again with --json"
