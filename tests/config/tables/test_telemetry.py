"""The [metrics] section."""

from pathlib import Path

import pytest

from agentos.telemetry.settings import MetricsSettings, OtelSettings
from tests.config.saying import loaded, said

pytestmark = pytest.mark.usefixtures("home")


def test_a_file_sets_where_metrics_are_served_and_their_token(home: Path) -> None:
    assert loaded("").metrics == MetricsSettings()
    assert loaded('[metrics]\nlisten = "127.0.0.1:9464"\n').metrics == MetricsSettings(("127.0.0.1", 9464))
    assert loaded('[metrics]\nlisten = "[::]:1"\ntoken_from = "file:t"\n').metrics == MetricsSettings(
        ("::", 1), f"file:{home}/t"
    )


@pytest.mark.parametrize("where", ["localhost:9464", "127.0.0.1", "127.0.0.1:0", "9464", "http://127.0.0.1:9464", ""])
def test_an_address_has_a_port(where: str) -> None:
    assert said(f'[metrics]\nlisten = "{where}"\n') == [
        "agentos.toml:2: metrics.listen: expected the address and port to listen on, as in 127.0.0.1:9464 or [::1]:9464"
    ]


def test_other_hosts_need_a_token() -> None:
    assert said('[metrics]\nlisten = "0.0.0.0:9464"\n') == [
        "agentos.toml:2: metrics.listen: other hosts reach 0.0.0.0: set token_from = 'file:PATH' or 'env:NAME', "
        "or listen on 127.0.0.1"
    ]


def test_a_token_is_never_shown_and_never_alone() -> None:
    assert said('[metrics]\nlisten = "0.0.0.0:9464"\ntoken_from = "tell-nobody"\n') == [
        "agentos.toml:3: metrics.token_from: expected where the value is, as 'env:NAME' or 'file:PATH'"
    ]
    assert said('[metrics]\nlisten = "0.0.0.0:9464"\ntoken_from = 5\n') == [
        "agentos.toml:3: metrics.token_from: expected a string, got 5"
    ]
    assert said('[metrics]\ntoken_from = "env:T"\n') == [
        "agentos.toml:2: metrics.token_from: it is for requests to listen: set that too, or leave this out"
    ]


def test_a_file_sets_a_collector_for_traces() -> None:
    assert loaded("").otel == OtelSettings()
    assert loaded('[otel]\nendpoint = "http://127.0.0.1:4318/"\ncontents = true\n').otel == OtelSettings(
        "http://127.0.0.1:4318", contents=True
    )


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:4318",
        "grpc://127.0.0.1:4317",
        "http://",
        "http://a:b@c",
        "http://c:99999",
        "http://c/v1/traces",
        "http://[::1",
        "http://::1]",
        "https://[x]",
    ],
)
def test_a_collector_is_a_url_without_a_path(url: str) -> None:
    assert said(f'[otel]\nendpoint = "{url}"\n') == [
        "agentos.toml:2: otel.endpoint: expected http://HOST:PORT or https://HOST:PORT of a collector, without a path"
    ]
