import socket
from pathlib import Path
from typing import Any

import pytest

from agentos.boot.host import BootError
from agentos.boot.telemetry import Telemetry, listen_tcp
from tests.config.saying import loaded
from tests.support.runs.rows import each_row

UNUSED: Any = None  # what isn't reached before the kernel gives up


@each_row(("source", "told"), [("env:NOT_SET", "NOT_SET"), ("file:none", "none")])
def test_no_metrics_are_served_while_their_token_can_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOT_SET", raising=False)
    config = loaded(f'[metrics]\nlisten = "0.0.0.0:9464"\ntoken_from = "{source}"\n')
    telemetry = Telemetry(config, UNUSED, UNUSED, UNUSED, UNUSED, UNUSED, UNUSED)

    with pytest.raises(BootError, match=rf"agentos\.toml: \[metrics\] token_from: .*{told}"):
        telemetry.open()


def test_a_port_that_is_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            BootError, match=rf"can't listen on 127.0.0.1:{port} for \[metrics\]: Address already in use"
        ):
            listen_tcp("127.0.0.1", port)
