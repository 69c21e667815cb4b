"""The operator's socket while the kernel runs."""

import os

from tests.conftest import OwnKernel
from tests.support.kernel import listens, until
from tests.support.wire import NOOP


def test_a_socket_that_was_removed_is_made_again_and_its_connections_go_on(own_kernel: OwnKernel) -> None:
    kernel = own_kernel("")
    with kernel.connect() as before:
        for _ in range(2):
            os.unlink(kernel.socket)
            until(lambda: os.path.exists(kernel.socket) and listens(kernel.socket), "the kernel listens again")

        assert before.ask(NOOP, b"x").body == b"x"
        with kernel.connect() as after:
            assert after.ask(NOOP, b"y").body == b"y"
    assert os.stat(kernel.socket).st_mode & 0o777 == 0o600
    kernel.wait_line("was removed: the kernel listens there again")
