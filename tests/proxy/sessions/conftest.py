"""Certificates for sessions with TLS."""

import pytest

from tests.proxy.tls_peer import Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))
