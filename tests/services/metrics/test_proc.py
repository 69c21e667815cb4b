"""Figures from /proc of this process, beside one that has ended, and of the host."""

import os
from pathlib import Path

from msgspec.structs import replace

from agentos.services.metrics.proc import ProcessFigures, read_host, read_processes

ENDED = (1 << 22) + 1  # no pid is higher than 1 << 22


def test_a_process_that_has_ended_counts_for_nothing() -> None:
    beside = read_processes([ENDED, os.getpid(), ENDED], with_pss=True)
    assert None not in (beside.cpu_seconds, beside.rss, beside.pss, beside.vms, beside.threads, beside.fds)
    ended = read_processes([ENDED], with_pss=True)
    assert ended == ProcessFigures(ended.at)


def test_pss_is_read_only_where_it_is_asked_for() -> None:
    assert read_processes([os.getpid()], with_pss=False).pss is None


def test_the_cpu_of_the_host_is_its_share_since_the_reading_before(tmp_path: Path) -> None:
    first = read_host(str(tmp_path), None, 5.0)
    assert first.cpu is None
    assert first.cpu_seconds is not None

    assert read_host(str(tmp_path), first, 0.0).cpu is None
    later = read_host(str(tmp_path), replace(first, cpu_seconds=first.cpu_seconds - 50), 5.0)
    assert later.cpu is not None
    assert later.cpu_seconds is not None
    assert later.cpu == (later.cpu_seconds - first.cpu_seconds + 50) / 5.0
    assert read_host(str(tmp_path), replace(first, cpu_seconds=first.cpu_seconds * 2), 5.0).cpu == 0
