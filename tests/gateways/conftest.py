"""Endpoints are asked without TLS, and each client of a vendor's SDK reads all certificates of the host, for 30 ms."""

from collections.abc import Iterator

import pytest

from tests.support.servers.http_server import make_authority


@pytest.fixture(scope="package", autouse=True)
def one_certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Clients trust an authority of the tests' alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(make_authority(tmp_path_factory.mktemp("authority"))))
        yield
