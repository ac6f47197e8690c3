"""`hardgate report`: what the page says, that it stands alone, and what it refuses."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner, Result

from hardgate_lab.cli import app
from hardgate_lab.reproduce.report import report_command
from hardgate_lab.reproduce.report.page import page
from hardgate_lab.reproduce.report.report_figures import pictures
from hardgate_lab.reproduce.report.runs import Runs, read
from hardgate_lab.reproduce.report.style import plain
from hardgate_lab.reproduce.report.write_report import digest, write_report
from tests.support.html_check import Page
from tests.support.paths import ROOT
from tests.support.tiny_runs import command, files, finish, job, run

Record = dict[str, Any]
NAMES = ("curves", "sparsity", "firing", "classes", "cost")


def invoke(*args: str | Path) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, args)], env={"COLUMNS": "200"})


def keep(folder: Path, *records: Any) -> Path:
    """Loose records, a file each."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, record in enumerate(records):
        (folder / f"{number}.json").write_text(json.dumps(record))
    return folder


def text_page(folder: Path) -> Page:
    """The page without its drawings."""
    runs = read(folder)
    return Page(page(runs, dict.fromkeys(range(len(runs.experiments)), ()), ()))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """Real records of a second's training."""
    folder = tmp_path_factory.mktemp("trained")
    rows = ("straight_through", "rectifier", "sigmoid", "dense")
    return {row: run(job(folder / row, row, lr=0.2)) for row in rows}


@pytest.fixture
def record(trained: dict[str, Record]) -> Record:
    return copy.deepcopy(trained["straight_through"])


@pytest.fixture(scope="module")
def records(trained: dict[str, Record]) -> list[Record]:
    """As if on the real data, with errors that the tests know."""
    made = []
    for row, seed, error in (
        ("straight_through", 0, 1.41),
        ("straight_through", 1, 1.51),
        ("straight_through", 2, 1.61),
        ("rectifier", 0, 1.60),
        ("sigmoid", 0, 1.50),
        ("dense", 0, 1.23),
    ):
        one = copy.deepcopy(trained[row])
        one |= {"seed": seed, "test_error": error, "canonical": True, "preset": "paper"}
        one |= {"density_train": 0.1 + 0.005 * seed, "density_test": 0.1}
        one |= {"seconds": 1234.0 + seed} if row != "dense" else {}
        if row == "dense":
            one |= {"density_train": 1.0, "density_test": 1.0}
        made.append(one)
    made[3]["density_train"] = 0.12
    return made


@pytest.fixture(scope="module")
def report(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole report, drawn once."""
    folder = tmp_path_factory.mktemp("report")
    result = invoke(keep(folder / "records", *records), "--out", folder / "out")
    assert result.exit_code == 0, result.output
    assert result.output.rstrip().endswith(f"browser: {folder / 'out' / 'report.html'}")
    return folder / "out"


@pytest.fixture(scope="module")
def shown(report: Path) -> Page:
    return Page((report / "report.html").read_text())


# What the page says


def test_the_page_has_the_numbers_of_the_records(shown: Page, records: list[Record]) -> None:
    first, dense = records[0], records[-1]
    for words in (
        "1.51 ± 0.10 paper 1.39",  # mean and spread of three seeds
        "1.50 paper 1.92",
        "10.5 / 10.0",
        "1235 ± 1",
        f"{first['multiplications']['needed'] / 1e6:.2f}",
        f"machine {first['machine']}",
        f"torch {first['versions']['torch']}",
        f"{dense['multiplications']['dense']:,}".replace(",", " "),
        "Straight-through 3 seeds",
        *(f"{record['valid_error']:.2f}" for record in records),
    ):
        assert words in shown.text


def test_full_length_runs_are_compared_with_the_paper(shown: Page) -> None:
    assert shown.table(0) == [
        ["", "Test error, %", "Gates on, %", ""],
        [
            *("Gater", "this run", "recorded", "paper", "against paper"),
            *("this run", "recorded", "paper", "Time"),
        ],
        [
            *("Straight-through", "1.51 ± 0.10", "1.36 ± 0.09", "1.39", "0.12 above"),
            *("10.0", "10.0", "10", "21 min"),
        ],
        [
            *("Baseline rectifier", "1.60", "1.60", "1.60", "equal"),
            *("10.0", "9.4", "10", "21 min"),
        ],
        [
            *("Baseline sigmoid", "1.50", "1.78", "1.92", "0.42 below"),
            *("10.0", "all", "all", "21 min"),
        ],
        [
            *("Dense ReLU, no gates", "1.23", "1.27", "–", "–"),
            *("all", "all", "–", shown.table(0)[-1][-1]),
        ],
    ]
    for words in (
        "What was run. The paper preset on MNIST: 4 rows, 6 runs with all seeds, 3 epochs each",
        "2 of 3 rows reach the paper's test error or go below it.",
        "Not reached: Straight-through (0.12 above).",
        "One test error here has a standard error of 0.12 points",
        "12.0 / 10.0 not within 10 ± 1",  # the rectifier's gates
    ):
        assert words in shown.text
    assert "experiment at work" not in shown.text


def quick(row: str, error: float, **changes: Any) -> Record:
    """A record of the quick preset, as if on the real data."""
    return {
        "dataset": "mnist", "canonical": True, "preset": "quick", "row": row, "seed": 0,
        "test_error": error, "density_test": 0.1, "epochs": 4, "seconds": 94.0,
        "machine": "a processor", **changes,
    }  # fmt: skip


def test_a_quick_run_stands_beside_the_recorded_runs_and_the_paper(tmp_path: Path) -> None:
    said = text_page(
        keep(tmp_path, quick("straight_through", 2.5), quick("best", 2.25, density_test=0.1234))
    )
    names = ["this run", "recorded", "paper"]
    assert said.table(0)[1:] == [
        ["Gater", *names, *names, "Time"],
        ["Straight-through", "2.50", "1.36 ± 0.09", "1.39", "10.0", "10.0", "10", "1 min 34 s"],
        ["Best of this library", "2.25", "1.22 ± 0.04", "–", "12.3", "10.0", "–", "1 min 34 s"],
    ]
    for words in (
        "The quick preset on MNIST: 2 rows, 4 epochs each, 3 min 8 s of training",
        "Processor: a processor.",
        "A run of 4 epochs shows the experiment at work, not its final errors.",
        "14 to 36 epochs: all 7 rows of the paper reach its test error or go below it.",
        "about 50 minutes on 2 cores",
        "hardgate reproduce --preset paper --out out/paper",
    ):
        assert words in said.text
    calm = said.text.lower()
    assert not any(word in calm for word in ("not reached", "above)", "✗", "hand on heart"))
    assert said.of_class("bad") == said.of_class("good") == 0


def test_the_first_screen_comes_first(tmp_path: Path) -> None:
    said = text_page(keep(tmp_path, quick("straight_through", 2.5)))
    order = ["arXiv 1308.3432", "What was run.", "this run", "What it shows.", "Further down:"]
    places = [said.text.index(words) for words in [*order, "Training loss"]]
    assert places == sorted(places)
    links = [given["href"] for tag, given in said.elements if tag == "a"]
    assert links == [f"#e0-{number}" for number in range(4)]  # and all lead somewhere: no faults
    assert not said.faults


def test_the_recorded_runs_do_not_stand_beside_themselves() -> None:
    said = text_page(ROOT / "results" / "reproduce")
    names = ["this run", "paper"]
    assert said.table(0)[1] == ["Gater", *names, "against paper", *names, "Time"]
    straight = ["Straight-through", "1.36 ± 0.09", "1.39", "0.03 below", "10.0", "10", "27 min"]
    assert straight in said.table(0)
    assert "7 of 7 rows reach the paper's test error or go below it." in said.text
    assert "To repeat the recorded runs" not in said.text
    assert not said.faults


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"canonical": False}, "These files are not known to be the real MNIST"),
        ({"dataset": "fashion-mnist"}, "The paper has no figures for Fashion-MNIST"),
    ],
)
@pytest.mark.parametrize("preset", ["quick", "paper"])
def test_other_data_are_not_held_against_the_paper(
    changes: Record, why: str, preset: str, tmp_path: Path
) -> None:
    record = quick("straight_through", 1.0, preset=preset, **changes)
    said = text_page(keep(tmp_path, record | {"train_loss": 0.1, "valid_error": 1.25}))
    assert said.table(0) == [
        ["", "Test error, %", "Gates on, %", ""],
        ["Gater", "this run", "this run", "Time"],
        ["Straight-through", "1.00", "10.0", "1 min 34 s"],
    ]
    assert f"{why}, so the table shows this run alone." in said.text
    for words in ("1.39", "1.42", "1.36", "recorded", "reach the paper"):  # the paper's, and ours
        assert words not in said.text


def test_each_figure_says_what_you_are_looking_at(shown: Page) -> None:
    assert sum(tag == "figure" for tag, _ in shown.elements) == len(NAMES)
    assert shown.text.count("What you are looking at:") == len(NAMES)


def test_settings_are_shared_once_and_then_differ(
    trained: dict[str, Record], tmp_path: Path
) -> None:
    rows = [copy.deepcopy(trained["straight_through"]) for _ in range(4)]
    for seed, row in enumerate(rows):
        row["seed"] = seed
    rows[2]["settings"]["lr"] = 0.0625
    rows[3]["row"] = "rectifier"
    rows[3]["settings"] |= {"unit": "rectifier", "sparsity": "l1"}
    text = text_page(keep(tmp_path, *rows)).text
    assert text.count("bottleneck_max_norm") == 1
    assert "Straight-through, seed 0, 1 nothing" in text
    assert "Straight-through, seed 2 lr 0.0625" in text
    assert "Baseline rectifier unit rectifier, sparsity l1" in text


def test_gates_are_shown_of_rows_that_have_them(records: list[Record], tmp_path: Path) -> None:
    (experiment,) = read(keep(tmp_path, *records)).experiments
    panels = {p.name: [panel.title for panel in p.panels] for p in pictures(experiment)}
    assert all(plain(title) == title for titles in panels.values() for title in titles)  # not cut
    assert tuple(panels) == NAMES
    assert panels["firing"] == panels["classes"] == ["Straight-through", "Baseline rectifier"]
    only_dense = read(keep(tmp_path / "dense", records[-1])).experiments[0]
    assert [p.name for p in pictures(only_dense)] == ["curves", "cost"]


def test_each_kind_of_run_has_a_table_and_names_of_its_own(record: Record, tmp_path: Path) -> None:
    bare = {key: record[key] for key in ("row", "seed", "curves")}
    kinds = [{"preset": "quick"}, {"preset": "paper"}, {"preset": "paper", "dataset": "a/../b"}]
    runs = read(keep(tmp_path / "in", *({"dataset": "mnist", **bare, **kind} for kind in kinds)))
    written = write_report(runs, tmp_path, lambda done, total: None)
    said = Page(written.read_text())
    assert not said.faults
    assert "MNIST, paper preset" in said.text
    assert "MNIST, quick preset" in said.text
    names = [f"report-{name}-curves.png" for name in ("mnist-paper", "mnist-quick", "a-b-paper")]
    assert {path.name for path in tmp_path.glob("*.png")} == set(names)
    assert all(name in said.text for name in names)


# That it stands alone


def test_the_page_is_whole_and_needs_no_network(report: Path, shown: Page) -> None:
    assert shown.faults == []
    content = (report / "report.html").read_text()
    assert content.startswith("<!DOCTYPE html>")
    assert '<meta name="viewport"' in content
    for media in ("prefers-color-scheme: dark", "@media print", "max-width"):
        assert media in content
    inside = [given.get("class", "").split() for tag, given in shown.parents("table")]
    assert inside
    assert all("scroll" in classes for classes in inside)
    assert sum(tag == "svg" for tag, _ in shown.elements) == 2 + 2 + 2 + 2 + 3
    assert len(content) < 1_000_000


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        ("<p><b>x</p></b>", "closes another"),
        ("<p>", "not closed"),
        ('<a href="https://a.org">x</a>', "leads to https"),
        ('<p style="fill: url(https://a.org)"></p>', "a style loads"),
        ('<svg><use xlink:href="#a"/></svg>', "id a is not there"),
        ('<p id="a"></p><p id="a"></p>', "id a twice"),
        ("<script></script>", "<script> is in"),
        ('<p onclick="x()"></p>', "onclick"),
        ('<p style="color: var(--x)"></p>', "--x is used"),
    ],
)
def test_the_check_of_the_page_finds_faults(broken: str, fault: str) -> None:
    assert fault in " ".join(Page(broken).faults)
    assert not Page("<p>fine</p>").faults


def test_the_figures_are_there_as_png(report: Path, records: list[Record], tmp_path: Path) -> None:
    assert {path.name for path in report.iterdir()} == {
        "report.html",
        *(f"report-{name}.png" for name in NAMES),
    }
    (experiment,) = read(keep(tmp_path, *records)).experiments
    for name in NAMES:
        with Image.open(report / f"report-{name}.png") as figure:
            assert figure.info["Source"] == digest(experiment)
            counts = figure.convert("RGB").getcolors(figure.width * figure.height)
        assert min(figure.size) > 200
        assert counts is not None
        assert len(counts) > 50
        assert max(counts)[0] < 0.97 * figure.width * figure.height  # not an empty sheet


def test_the_digest_tells_other_records(record: Record, tmp_path: Path) -> None:
    (one,) = read(keep(tmp_path, record)).experiments
    (same,) = read(keep(tmp_path, record)).experiments
    record["curves"]["valid_error"][0] += 0.01
    (other,) = read(keep(tmp_path, record)).experiments
    assert digest(one) == digest(same) != digest(other)


def test_it_is_the_same_every_time(record: Record, tmp_path: Path) -> None:
    keep(tmp_path / "in", {k: record[k] for k in ("row", "curves", "firing_rates", "class_use")})
    for name in "ab":
        assert invoke(tmp_path / "in", "--out", tmp_path / name).exit_code == 0
    once = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    again = {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    assert once == again
    assert len(once) == 4


def test_the_template_is_part_of_the_package() -> None:
    assert resources.files("hardgate_lab.reproduce.report").joinpath("page.html").is_file()


# Records that are not as they should be


EVIL = '"><img src=x onerror=alert(1)></b><script>alert(1)</script> $x_{$ &amp;'


def test_what_records_say_is_text(record: Record, tmp_path: Path) -> None:
    record |= {"row": f"_{EVIL}", "machine": EVIL, "preset": EVIL, "dataset": EVIL}
    record["versions"], record["settings"][EVIL] = {EVIL: EVIL}, EVIL
    record["settings"]["\ud800"] = "\x00\ud800"  # no file could hold it
    runs = read(keep(tmp_path / "in", record))
    said = Page(write_report(runs, tmp_path, lambda done, total: None).read_text())
    assert said.faults == []
    assert said.text.count(" ".join(EVIL.split())) >= 5
    assert len(list(tmp_path.glob("*.png"))) == 5


@pytest.fixture(scope="module")
def fields(trained: dict[str, Record]) -> list[str]:
    return [name for name in trained["straight_through"] if name != "row"]


def test_every_field_may_be_missing(record: Record, fields: list[str], tmp_path: Path) -> None:
    for name in fields:
        less = {key: value for key, value in record.items() if key != name}
        said = text_page(keep(tmp_path, less))
        assert not said.faults
        assert "Straight-through" in said.text
    said = text_page(keep(tmp_path, {"row": "dense"}))
    assert "Dense ReLU, no gates seed None – – – – / –" in said.text
    assert said.table(0)[-1] == ["Dense ReLU, no gates", "–", "–", "–"]
    assert "These records hold no settings." in said.text


@pytest.mark.parametrize("name", ["settings", "curves", "firing_rates", "class_use", "dead"])
def test_figures_are_drawn_of_what_is_there(name: str, record: Record, tmp_path: Path) -> None:
    del record[name]
    record["curves"] = {k: [None, *v[1:]] for k, v in record.get("curves", {}).items()}
    (experiment,) = read(keep(tmp_path / "in", record)).experiments
    wanted = {
        "settings": {"curves", "firing", "classes", "cost"},
        "curves": {"firing", "classes", "cost"},
        "firing_rates": {"curves", "sparsity", "cost"},
        "class_use": {"curves", "sparsity", "firing", "cost"},
        "dead": set(NAMES),
    }
    assert {picture.name for picture in pictures(experiment)} == wanted[name]
    written = write_report(Runs([experiment], (), None), tmp_path, lambda done, total: None)
    assert not Page(written.read_text()).faults


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_fields_may_hold_anything(
    data: st.DataObject,
    trained: dict[str, Record],
    fields: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    given_ = copy.deepcopy(trained["straight_through"])
    for name in data.draw(st.lists(st.sampled_from(fields), min_size=1, max_size=4)):
        given_[name] = data.draw(JSON)
    folder = keep(tmp_path_factory.mktemp("any"), given_)
    assert not text_page(folder).faults
    assert all(picture.panels for picture in pictures(read(folder).experiments[0]))


# What is refused


def nothing(folder: Path) -> None:
    folder.rmdir()


def empty(folder: Path) -> None:
    pass


def unfinished(folder: Path) -> None:
    keep(folder / "mnist-quick" / "sigmoid-0")
    (folder / "mnist-quick" / "sigmoid-0" / "lock").touch()
    (folder / "mnist-quick" / "sigmoid-0" / "epoch-0001.json").write_text("{}")


def cut(folder: Path) -> None:
    (folder / "a.json").write_text('{"row": "sig')


def binary(folder: Path) -> None:
    (folder / "a.json").write_bytes(bytes(range(256)))


def deep(folder: Path) -> None:
    (folder / "a.json").write_text("[" * 100_000)


def no_row(folder: Path) -> None:
    keep(folder, {"timings": [], "version": 1})


def no_object(folder: Path) -> None:
    keep(folder, [3])


def no_record(folder: Path) -> None:
    keep(folder, [])


def twice(folder: Path) -> None:
    keep(folder, {"row": "sigmoid", "seed": 0}, {"row": "sigmoid", "seed": 0})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (nothing, ["expected finished runs", "got nothing of that name", "hardgate reproduce"]),
        (empty, ["expected finished runs", "got none", "Type `hardgate reproduce --out RUNS`"]),
        (unfinished, ["not finished: mnist-quick/sigmoid-0", "carries on"]),
        (cut, ["a.json: expected a record in JSON", "Unterminated", "--fresh"]),
        (binary, ["a.json: expected a record in JSON", "Remove it"]),
        (deep, ["a.json: expected a record in JSON", "Remove it"]),
        (no_row, ['an object with a "row"', "got the keys 'timings', 'version'"]),
        (no_object, ["0.json[0]", "got '3'"]),
        (no_record, ["got none"]),
        (twice, ["expected one record of a row and seed", "got 2 of sigmoid, seed 0", "1.json"]),
    ],
)
def test_refusals(make: Callable[[Path], None], words: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    make(folder)
    result = invoke(folder, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    for word in words:
        assert word in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


def test_where_it_cannot_be_written_it_says_so(record: Record, tmp_path: Path) -> None:
    result = invoke(keep(tmp_path, record), "--out", "/proc/nowhere")
    assert result.exit_code == 1
    assert "cannot make the folder" in result.output
    assert "--out DIR" in result.output


def test_a_full_disk_leaves_the_old_report(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "report.html").write_text("old")
    monkeypatch.setattr("os.fsync", full)
    result = invoke(keep(tmp_path / "in", {"row": "sigmoid"}), "--out", tmp_path)
    assert result.exit_code == 1
    assert "No space left on device" in result.output
    assert {path.name for path in tmp_path.iterdir()} == {"in", "report.html"}
    assert (tmp_path / "report.html").read_text() == "old"


# As a user sees it


def test_reproduce_ends_with_the_report(tmp_path: Path) -> None:
    data, out, listed = files(tmp_path / "data"), tmp_path / "out", tmp_path / "all.json"
    unfinished(out)
    args = ("--row=rectifier", "--row=dense", "--jobs=2", f"--json={listed}")
    code, output = finish(command(*args, data=data, out=out))
    assert code == 0, output
    table, where, after = map(output.index, ("Baseline", str(out / "report.html"), "Next:"))
    assert table < where < after
    assert len(output[after:].splitlines()) == 5  # two commands, each with a line on it
    said = Page((out / "report.html").read_text())
    assert not said.faults
    (rectifier, dense) = json.loads(listed.read_text())
    for words in ("files not known to be the real ones", f"{rectifier['test_error']:.2f}"):
        assert words in said.text
    assert "Not finished yet: mnist-quick/sigmoid-0." in said.text
    for source in (listed, out / "mnist-quick", out / "mnist-quick" / "dense-0"):
        (experiment,) = read(source).experiments
        assert experiment.results[-1].numbers["test_error"] == dense["test_error"]
    assert read(listed).folder is None
    assert read(out).folder == out


def test_progress_is_told(record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_command, "_PATIENCE", -1.0)
    folder = keep(tmp_path, {key: record[key] for key in ("row", "curves")})
    console = Console(file=cast(Any, file := TextFile()), width=100)
    report_command.make_report(folder, tmp_path / "out", console)
    assert "report: 1 of 3 drawings" in file.text
    terminal = Console(file=cast(Any, file := TextFile()), width=100, force_terminal=True)
    report_command.make_report(folder, tmp_path / "out", terminal)
    assert "drawing the report" in file.text


class TextFile(BytesIO):
    """A file that a console can print to."""

    text = ""

    def write(self, text: Any) -> int:
        self.text += text
        return len(text)
