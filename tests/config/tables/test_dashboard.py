"""The [dashboard] section."""

from pathlib import Path

import pytest

from agentos.config.tables.dashboard import DashboardSettings
from tests.config.saying import loaded, said
from tests.support.runs.rows import each_row

pytestmark = pytest.mark.usefixtures("home")


def test_a_file_sets_where_the_dashboard_listens_and_the_names_of_its_proxy(home: Path) -> None:
    assert loaded("").dashboard is None
    assert loaded("[dashboard]\n").dashboard == DashboardSettings(host="127.0.0.1", port=None, allowed_hosts=[])
    assert loaded('[dashboard]\nlisten = "[::1]:65535"\nallowed_hosts = ["Desk.example"]\n').dashboard == (
        DashboardSettings(host="::1", port=65535, allowed_hosts=["desk.example"])
    )


@each_row(
    ("line", "told"),
    [
        ('listen = "8000"', "listen: expected HOST:PORT such as 127.0.0.1:8000, got '8000'"),
        ('listen = "127.0.0.1:65536"', "listen: expected HOST:PORT such as 127.0.0.1:8000, got '127.0.0.1:65536'"),
        ('allowed_hosts = ["a:8000"]', "allowed_hosts: expected host names without port, got 'a:8000'"),
    ],
)
def test_another_place_or_name_is_a_mistake(line: str, told: str) -> None:
    [mistake] = said(f"[dashboard]\n{line}\n")

    assert mistake == f"agentos.toml:2: dashboard.{told}"
