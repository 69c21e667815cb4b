"""The tour of the dashboard: its demo on eight pages, as PNG files in AGENTOS_TOUR if that is set (`make tour`)."""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.support.kernel import Kernel, until
from tests.support.runs.rows import each_row
from tests.web.chromium import Open, find_chromium

DEMO = Path(__file__).parents[2] / "demos" / "dashboard"
MAX_BYTES = 120 << 10  # of a picture
SETTLED_MS = 100_000


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    """The demo, from a copy in a directory with a name that pictures may show."""
    find_chromium()
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as place:
        project = shutil.copytree(DEMO, Path(place) / "shop")
        started = Kernel(options=[str(project / "agentos.toml")])
        try:
            started.wait_ready()
            yield started
            started.stop()
        finally:
            started.clean_up()


@pytest.fixture(scope="module")
def place(kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the pictures are written. Those that are kept show a kernel that has been up for a while."""
    chosen = os.environ.get("AGENTOS_TOUR")
    if not chosen:
        return tmp_path_factory.mktemp("tour")
    with kernel.client() as client:
        until(lambda: client.status()["up_ms"] > SETTLED_MS, "the charts have a history", SETTLED_MS / 500)
    found = Path(chosen)
    found.mkdir(parents=True, exist_ok=True)
    return found


def is_lively(page: Any) -> None:
    """Wait until the demo has all that it shows: failed, backing off and asking agents, and a line for the model."""
    for text in ("column orders.total is missing", "connection refused by shop.example", "git push origin main"):
        page.locator(".attention", has_text=text).wait_for()
    page.locator("os-chart canvas").first.wait_for()


def shows_use(page: Any) -> None:
    """CPU use is known from the second reading on."""
    page.locator("td.number, .use", has_text=re.compile(r"^0\.\d\d")).first.wait_for()


def shows_chart(page: Any) -> None:
    shows_use(page)
    page.locator("os-chart canvas").first.wait_for()


def shows_bars(page: Any) -> None:
    page.locator("i.waiting + i.model").first.wait_for()


def shows_line(page: Any) -> None:
    page.locator("td", has_text="in flight").first.wait_for()
    page.locator("td", has_text="normal").first.wait_for()


def shows_command(page: Any) -> None:
    page.locator(".approval .quoted", has_text="git push").wait_for()


def shows_change(page: Any) -> None:
    """Begin a change of rules; nothing is set."""
    page.get_by_role("button", name="change…").click()
    page.get_by_label("right", exact=True).select_option("domains")
    page.get_by_label("pattern").fill("GET git.example.com")
    page.get_by_role("button", name="add", exact=True).click()
    page.get_by_text("+ allow domains GET git.example.com").wait_for()


TOUR: list[tuple[str, str, str, tuple[int, int], Callable[[Any], None]]] = [
    ("overview", "overview", "dark", (1200, 760), is_lively),
    ("agents", "agents?agent=indexer", "light", (1200, 760), shows_chart),
    ("tree", "tree", "dark", (1200, 540), shows_use),
    ("trace", "trace?of=reviewer-1", "dark", (1200, 560), shows_bars),
    ("model", "model", "light", (1200, 680), shows_line),
    ("approvals", "approvals", "dark", (1200, 400), shows_command),
    ("rights", "approvals?agent=coder&tab=rights", "light", (1200, 760), shows_change),
    ("phone", "overview", "dark", (390, 844), is_lively),
]


@pytest.fixture
def page(open_page: Open) -> Any:
    return open_page()


@each_row(("name", "target", "theme", "size", "wait"), TOUR, ids=[one[0] for one in TOUR])
def test_a_page_of_the_tour(
    page: Any,
    place: Path,
    name: str,
    target: str,
    theme: Literal["dark", "light"],
    size: tuple[int, int],
    wait: Callable[[Any], None],
) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.emulate_media(color_scheme=theme)
    page.goto(page.url.partition("#")[0] + f"#/{target}")
    wait(page)
    picture = place / f"{name}.png"
    page.screenshot(path=picture, animations="disabled")

    assert picture.stat().st_size <= MAX_BYTES
