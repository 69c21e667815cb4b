from pathlib import Path

import pytest

from agentos.boot.host import BootError
from agentos.boot.network import HttpFiles
from tests.config.saying import loaded


def test_a_cassette_that_changes_after_the_configuration_was_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shop.har").write_text('{"log": {"entries": []}}')
    config = loaded('[http]\ncassette = "shop.har"\n')
    assert HttpFiles.read(config).cassette is not None

    Path("shop.har").write_text("no longer JSON")

    with pytest.raises(BootError, match=r"agentos\.toml: \[http\] cassette: .*shop\.har: no HAR"):
        HttpFiles.read(config)
