"""A kernel that runs out of descriptors: who asks for more is refused, and everything else goes on."""

import contextlib
import os
import resource
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos_sdk import AgentOSClient
from tests.llm.vendors.script import Says, Text
from tests.support.kernel import Kernel, running, until
from tests.support.servers.vendor import vendor
from tests.system.agents import info, up


def test_a_kernel_without_descriptors_goes_on_and_recovers(kernel: Kernel, client: AgentOSClient) -> None:
    with tempfile.TemporaryDirectory(prefix="aos-work-", dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        up(client.spawn("watched", command=["sleep", "1000"], workspace=str(Path(directory).resolve())))
        limits = resource.prlimit(kernel.pid, resource.RLIMIT_NOFILE)
        crowd: list[socket.socket] = []
        try:
            resource.prlimit(kernel.pid, resource.RLIMIT_NOFILE, (3, limits[1]))  # no number is free below
            for _ in range(8):
                crowd.append(socket.socket(socket.AF_UNIX))
                crowd[-1].connect(kernel.socket)

            kernel.wait_line("workspaces could not be measured")
            assert not client.spawn("one more", command=["sleep", "1000"])["success"]
            assert info(client, "watched")["state"] == "running"
        finally:
            resource.prlimit(kernel.pid, resource.RLIMIT_NOFILE, limits)
            for one in crowd:
                one.close()

        until(kernel.answers, "it answers again")
        up(client.spawn("another", command=["sleep", "1000"]))


@contextlib.contextmanager
def without_descriptors(kernel: Kernel) -> Iterator[None]:
    limits = resource.prlimit(kernel.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(kernel.pid, resource.RLIMIT_NOFILE, (3, limits[1]))  # no number is free below
    try:
        yield
    finally:
        resource.prlimit(kernel.pid, resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("kernels")
def test_the_first_question_at_the_descriptor_limit_is_answered_offline() -> None:
    with running('[llm]\nprovider = "offline"\n') as kernel, kernel.client() as client:
        client.list_agents()
        with without_descriptors(kernel):
            assert client.think("hello")["content"].endswith("hello")  # that no bug is logged is asserted at the end


@pytest.mark.usefixtures("kernels")
def test_the_first_question_at_the_descriptor_limit_has_a_clear_error_and_the_next_an_answer() -> None:
    toml = '[llm]\nprovider = "openai"\nmodel = "m"\nretry = {{ attempts = 1 }}\nbase_url = "{url}"\n'
    with vendor() as met:
        met.models = {"m": Says([Text("yes")])}
        with running(toml.format(url=met.base_url), {"OPENAI_API_KEY": met.key}) as kernel, kernel.client() as client:
            client.list_agents()
            with without_descriptors(kernel):
                refused = client.think("hello")

            assert (refused["success"], refused["code"]) == (False, "unavailable"), refused
            answer = client.think("hello")
            assert answer["content"] == "yes", answer


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read what the kernel has mapped")
@pytest.mark.usefixtures("kernels")
def test_the_sdk_of_a_vendor_is_loaded_once_the_kernel_is_ready() -> None:
    toml = '[llm]\nprovider = "openai"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
    with running(toml) as kernel:
        maps = Path(f"/proc/{kernel.pid}/maps")
        until(lambda: "pydantic_core" in maps.read_text(), "the SDK is loaded, and nothing was asked")
        assert kernel.answers()
