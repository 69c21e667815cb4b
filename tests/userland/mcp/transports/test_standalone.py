"""The kernel that an MCP server starts for itself."""

from pathlib import Path

import pytest

from agentos.userland.mcp.transports.standalone import KernelOptions, is_listening, start
from tests.support.kernel import until
from tests.support.wire import PATIENCE


def test_a_kernel_imports_no_module_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "project"
    place.mkdir()
    marker = tmp_path / "marker"
    for name in ("ctypes", "trio", "agentos"):
        (place / f"{name}.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    monkeypatch.chdir(place)
    socket = str(tmp_path / "s")

    process = start(KernelOptions(socket, tmp_path / "state"))
    until(lambda: is_listening(socket) or marker.exists() or process.poll() is not None, "the kernel has started")
    listens = is_listening(socket)
    process.terminate()
    process.wait(PATIENCE)

    assert listens
    assert not marker.exists()
