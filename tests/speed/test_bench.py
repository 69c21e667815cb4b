"""The table of the measurement: which rows there are, how they are selected, and when one got worse."""

import re
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from tests.speed import bench, tools
from tests.speed.place import Place
from tests.speed.processes import ROOT
from tests.speed.results import WORSE, Figure, Result, Row, as_markdown, read_figures
from tests.speed.tools import Tools
from tests.support.runs.rows import each_row

LATENCY = Row("latency", " ms", most=5)
RATE = Row("rate", "/s", more=True)
BESIDE = Row("beside", " ms", most_ratio=2, floor="true")


def page_of(*results: Result) -> str:
    return f"# Speed\n\n<!-- bench -->\n{as_markdown({'CPU': '2 x C'}, results)}\n<!-- /bench -->\n"


def test_the_legend_names_the_rows_that_are_measured() -> None:
    legend = re.search(r"\| row \| .*?\n\n", bench.PAGE.read_text(), re.DOTALL)

    assert legend is not None
    _, _, *lines = legend[0].strip().splitlines()
    named = [name.strip() for line in lines for name in line.split("|")[1].split(";")]
    assert sorted(named) == sorted(row.name for group in bench.GROUPS for row in group.rows)


def test_rows_are_selected_by_their_name_or_by_their_group() -> None:
    names = {group.name: {row.name for row in group.rows} for group in bench.GROUPS}

    assert {group: {row.name for row in rows} for group, rows in bench.select("").items()} == names
    assert {row.name for row in bench.select("AUDIT")["audit"]} == names["audit"]
    [spawn] = [group for group in bench.GROUPS if group.name == "spawn"]
    assert [row.name for row in bench.select("first call")["spawn"]] == [row.name for row in spawn.rows[:2]]
    assert list(bench.select("decided by 100")) == ["permissions"]


@pytest.mark.usefixtures("kernels")
def test_a_text_that_no_row_contains_is_an_error_that_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["zeppelin"])

    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "no row or group is called 'zeppelin'" in said
    assert all(row.name in said for group in bench.GROUPS for row in group.rows)


@pytest.mark.parametrize("others", [["audit"], ["layers: images"], ["--quick"]])
@pytest.mark.usefixtures("kernels")
def test_only_a_whole_run_is_written_to_the_page(others: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--write", *others])

    assert "--write needs all rows in full length" in capsys.readouterr().err


def test_the_layers_have_a_table_of_their_own_on_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "PAGE", tmp_path / "page.md")
    bench.PAGE.write_text("<!-- bench -->\nothers\n<!-- /bench -->\n<!-- layers -->\nold\n<!-- /layers -->\n")
    [*_, images] = bench.GROUPS

    bench.write({"CPU": "one"}, [Result(row, Figure(5.0, 4.0, 6.0)) for row in images.rows])

    text = bench.PAGE.read_text()
    assert text.startswith("<!-- bench -->\nothers\n<!-- /bench -->\n<!-- layers -->\n- CPU: one\n")
    assert read_figures(text) == {row.name: Figure(5.0, 4.0, 6.0) for row in images.rows}
    assert bench.is_whole(bench.select("layers"))


def test_a_group_that_fails_does_not_keep_the_others_from_being_measured(
    monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    def fails(place: Place) -> list[Result]:
        raise OSError("no sockets today")

    first, second = Result.of(LATENCY, [1.0]), Result.of(RATE, [2.0])
    groups = (
        bench.Group("fails", fails, (BESIDE,)),
        bench.Group("works", lambda _: [first, second], (LATENCY, RATE)),
    )
    monkeypatch.setattr(bench, "GROUPS", groups)
    found: list[Result] = []

    failed = bench.measure(place, {"fails": [BESIDE], "works": [RATE]}, found.append)

    assert found == [second]
    assert "no sockets today" in failed["fails"]


def test_modules_are_compiled_before_a_kernel_loads_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("here = 1\n")
    monkeypatch.setattr(tools, "PACKAGES", (tmp_path,))

    tools.compile_modules()

    assert Path(cache_from_source(str(module))).exists()


@pytest.fixture
def place() -> Place:
    return Place(ROOT, Tools(ROOT, ROOT, ROOT), (), 0)  # nothing is started


def test_a_figure_is_the_median_with_the_quartiles_of_its_rounds() -> None:
    assert Figure.of([4.0]) == Figure(4.0)
    assert Figure.of([1.0, 2.0, 3.0, 4.0, 5.0]) == Figure(3.0, 2.0, 4.0)
    assert Figure.of([1.0, 9.0, 5.0] * 10) == Figure(5.0, 5.0, 5.0)  # ten parts whose medians are alike


def test_a_ratio_is_that_of_each_round() -> None:
    result = Result.of(BESIDE, [2.0, 4.0, 9.0], [1.0, 2.0, 3.0])

    assert result.ratio == Figure(2.0, 2.0, 2.5)
    assert result.cells() == (
        "beside",
        "4.00 ms (3.00 to 6.50)",
        "true: 2.00 ms",
        "2.00 (2.00 to 2.50)",
        "<= 2 x true",
        "yes",
    )


@each_row(
    ("row", "now", "change"),
    [
        (LATENCY, Figure(12.0, 11.1, 13.0), f"{WORSE}, +20%"),
        (LATENCY, Figure(11.5, 10.9, 13.0), "same"),  # the quartiles overlap
        (LATENCY, Figure(8.0, 7.0, 8.9), "better, -20%"),
        (RATE, Figure(8.0, 7.0, 8.9), f"{WORSE}, -20%"),
        (RATE, Figure(12.0, 11.1, 13.0), "better, +20%"),
        (LATENCY, Figure(50.0), "-"),  # a single round has no spread
    ],
)
def test_a_row_got_worse_where_the_quartiles_do_not_overlap(row: Row, now: Figure, change: str) -> None:
    assert Result(row, now).change(Figure(10.0, 9.0, 11.0)) == change
    assert Result(row, now).change(Figure(10.0)) == "-"
    assert Result(row, now).change(None) == "-"


def test_a_table_is_read_as_it_was_written() -> None:
    single = Row("single", " s")
    written = [
        Result(LATENCY, Figure(15.2, 14.8, 16.5), note="worst 28.3 (2 to 3)"),
        Result(RATE, Figure(484_477.0, 450_100.0, 501_000.0)),
        Result(BESIDE, Figure(15.2, 14.8, 16.5), Figure(5.9, 5.5, 6.0), Figure(2.63, 2.5, 2.75)),
        Result(single, Figure(10.2)),
    ]

    figures = read_figures(page_of(*written))

    assert figures == {
        "latency": Figure(15.2, 14.8, 16.5),
        "rate": Figure(484_477.0, 450_100.0, 501_000.0),
        "beside": Figure(2.63, 2.5, 2.75),
    }


@pytest.mark.parametrize(
    ("row", "target"),
    [
        (Row("a", " ms", most=5, most_ratio=1.4, floor="true"), "<= 1.4 x true, <= 5 ms"),
        (Row("a", "/s", least=1500), ">= 1,500/s"),
        (Row("a", " s"), "-"),
    ],
)
def test_a_target_says_its_bounds(row: Row, target: str) -> None:
    assert row.target == target


def test_a_row_meets_its_target_only_with_figure_and_ratio() -> None:
    row = Row("a", " ms", most=5, most_ratio=1.5)

    assert Result(row, Figure(4.0), Figure(3.0), Figure(1.3)).met
    assert not Result(row, Figure(6.0), Figure(5.0), Figure(1.2)).met
    assert not Result(row, Figure(4.0), Figure(2.0), Figure(2.0)).met
    assert Result(Row("a", " s"), Figure(6.0)).met is None
