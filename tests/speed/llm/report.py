"""The figures for people: tables, a CSV with all of them, and a plot."""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Literal

from tests.speed import results
from tests.speed.pages import drawing, replace_figures
from tests.speed.processes import ROOT
from tests.speed.results import Result, table

from . import gateway
from .figures import Figures
from .simulation.loads import SIZES, Kind
from .simulation.scenes import AT_ONCE, CONTEST, FLOODED, KERNEL, TITLES, Played
from .simulation.strategies import STRATEGIES

PAGE = ROOT / "docs" / "reference" / "llm-figures.md"
CSV, PLOT = (ROOT / "docs" / "figures" / f"llm.{kind}" for kind in ("csv", "svg"))
GATEWAY_CSV = CSV.with_name("llm-gateway.csv")
COLUMNS = (
    *("scene", "agents", "strategy", "kind", "asked", "failed", "wait_p50", "wait_p95", "wait_p99"),
    *("makespan", "tokens", "wasted", "jain"),
)
NOTABLE = 1.1  # times worse
LITTLE = 0.01  # seconds that aren't worth a word
RELIABLE = 0.1  # the share of failures above which a strategy has done much less work, and isn't compared


def seconds(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _kinds(played: Sequence[Played]) -> list[Kind]:
    return [kind for kind in SIZES if any(kind in each.figures.kinds for each in played)]


def _waits(figures: Figures, kind: Kind) -> str:
    if kind not in figures.kinds:
        return "-"
    waits = figures.kinds[kind].waits
    return " / ".join(map(seconds, (waits.p50, waits.p95, waits.p99)))


def scene_table(played: Sequence[Played]) -> str:
    """One scene: a row for each number of agents and strategy."""
    kinds = _kinds(played)
    if played[0].scene == CONTEST:
        return table(
            ("agents", "strategy", "Jain's index", *(f"{kind}: answered" for kind in kinds), "tokens/s"),
            (
                (
                    str(each.n),
                    each.strategy,
                    f"{each.jain:.3f}",
                    *(str(done(each.figures, kind)) for kind in kinds),
                    f"{each.figures.tokens / each.figures.makespan:.0f}",
                )
                for each in played
            ),
        )
    return table(
        ("agents", "strategy", *(f"{kind}: wait, s" for kind in kinds), "makespan, s", "failed", "wasted tokens"),
        (
            (
                str(each.n),
                each.strategy,
                *(_waits(each.figures, kind) for kind in kinds),
                seconds(each.figures.makespan),
                f"{each.figures.failed / each.figures.asked:.1%}",
                f"{each.figures.wasted:,}",
            )
            for each in played
        ),
    )


def done(figures: Figures, kind: Kind) -> int:
    return figures.kinds[kind].asked - figures.kinds[kind].failed if kind in figures.kinds else 0


def losses(played: Sequence[Played]) -> list[tuple[str, ...]]:
    """Where a strategy that answers nearly as reliably does notably better than the kernel."""
    lost: list[tuple[str, ...]] = []
    for (scene, n), group in groupby(played, key=attrgetter("scene", "n")):
        if scene == CONTEST:
            continue
        each = {_with_failures(one): measures(one.figures) for one in group if _reliable(one)}
        for what, mine in each.pop(KERNEL, {}).items():
            best = min(((theirs[what], strategy) for strategy, theirs in each.items()), default=(math.inf, ""))
            if mine > NOTABLE * best[0] and mine - best[0] > LITTLE:
                lost.append((TITLES[scene], str(n), what, seconds(mine), f"{best[1]}: {seconds(best[0])}"))
    return lost


def _reliable(played: Played) -> bool:
    return played.strategy == KERNEL or played.figures.failed <= RELIABLE * played.figures.asked


def _with_failures(played: Played) -> str:
    failed = played.figures.failed / played.figures.asked
    return f"{played.strategy} ({failed:.1%} failed)" if failed and played.strategy != KERNEL else played.strategy


def measures(figures: Figures) -> dict[str, float]:
    """What is better when less, in seconds."""
    waits = {f"{kind}: p95 wait, s": of.waits.p95 for kind, of in figures.kinds.items()}
    return {"makespan, s": figures.makespan, **waits}


def as_markdown(played: Sequence[Played]) -> str:
    parts = []
    for scene, group in groupby(played, key=attrgetter("scene")):
        parts += [f"### {TITLES[scene]}", scene_table(list(group))]
    lost = losses(played)
    parts += [
        "### Where the kernel loses",
        table(("load", "agents", "what", "kernel", "best"), lost) if lost else "Nowhere.",
    ]
    return "\n\n".join(parts)


def gateway_table(rows: Sequence[gateway.Row]) -> str:
    """Two models: a row for each case, a column for each number of questions at a time."""
    cases = dict.fromkeys((row.case, row.what) for row in rows)
    found = {(row.case, row.concurrency): row.shown.format(row.value) for row in rows}
    places = sorted({row.concurrency for row in rows})
    lines = ((case, what, *(found[case, each] for each in places)) for case, what in cases)
    return table(("case", "figure", *(f"concurrency {each}" for each in places)), lines)


def write_gateway_csv(path: Path, rows: Sequence[gateway.Row]) -> None:
    with path.open("w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(("case", "concurrency", "figure", "value"))
        lines.writerows((row.case, row.concurrency, row.what, f"{row.value:.4f}") for row in rows)


def write(about: Mapping[str, str], promised: Sequence[Result], played: Sequence[Played]) -> None:
    figures = results.as_markdown(dict(about), promised)
    replace_figures(PAGE, "bench", f"{figures}\n\n{as_markdown(played)}")
    CSV.parent.mkdir(exist_ok=True)
    write_csv(CSV, played)
    plot(PLOT, played)


def write_gateway(about: Mapping[str, str], rows: Sequence[gateway.Row]) -> None:
    host = "\n".join(f"- {name}: {value}" for name, value in about.items())
    replace_figures(PAGE, "gateway", f"{host}\n\n{gateway_table(rows)}")
    write_gateway_csv(GATEWAY_CSV, rows)


def write_csv(path: Path, played: Sequence[Played]) -> None:
    """A line for each kind of agent in each play; times in seconds."""
    with path.open("w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(COLUMNS)
        for each in played:
            figures = each.figures
            for kind, of in figures.kinds.items():
                waits = (f"{wait:.4f}" for wait in (of.waits.p50, of.waits.p95, of.waits.p99))
                last = (f"{figures.makespan:.3f}", figures.tokens, figures.wasted)
                jain = "" if each.jain is None else f"{each.jain:.4f}"
                lines.writerow([each.scene, each.n, each.strategy, kind, of.asked, of.failed, *waits, *last, jain])


def light_p95(played: Played) -> float:
    return played.figures.kinds["light"].waits.p95


def failed_percent(played: Played) -> float:
    return 100 * played.figures.failed / played.figures.asked


def index(played: Played) -> float:
    return math.nan if played.jain is None else played.jain


COLOURS = ("#f4a582", "#d6604d", "#c7c7c7", "#878787", "#2166ac")  # of the strategies, in their order
PANELS: Sequence[tuple[str, str, Callable[[Played], float], Literal["log", "linear"]]] = (
    (FLOODED, "light agents' p95 wait beside a flooder, s", light_p95, "log"),
    (AT_ONCE, "requests that fail when all ask at once, %", failed_percent, "linear"),
    (CONTEST, "Jain's index, all agents have work", index, "linear"),
)


def plot(path: Path, played: Sequence[Played]) -> None:
    """Three panels: waits of light agents beside a flooder, failures when all ask at once, Jain's index."""
    with drawing(path, len(PANELS), (9.5, 3)) as (figure, axes):
        for axis, (scene, title, value, scale) in zip(axes, PANELS, strict=True):
            here = [each for each in played if each.scene == scene]
            sizes = sorted({each.n for each in here})
            for place, strategy in enumerate(STRATEGIES):
                bars = [(sizes.index(each.n), value(each)) for each in here if each.strategy == strategy]
                left = [at + (place - 2) * 0.16 for at, _ in bars]
                axis.bar(left, [height for _, height in bars], 0.15, label=strategy, color=COLOURS[place])
            axis.set_xticks(range(len(sizes)), [f"{n} agents" for n in sizes])
            axis.set_yscale(scale)
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter("")
            axis.set_ylim(bottom=0.01 if scale == "log" else 0)
            axis.set_title(title, fontsize=8)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(STRATEGIES))
