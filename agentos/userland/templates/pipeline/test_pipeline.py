"""Each stage with a fake kernel, and all of them as agentos.toml runs them."""

from pathlib import Path

import pytest

from agentos_sdk.testing import FakeKernel, RunningKernel

HERE = Path(__file__).parent


def test_the_counter_counts_words(agentos_fake_kernel: FakeKernel) -> None:
    agentos_fake_kernel.deliver({"line": 1, "of": 1, "text": "one two  three"})

    agentos_fake_kernel.start(HERE / "counter.py")

    sent = agentos_fake_kernel.wait_for("send", to_name="collector")
    assert sent.fields["message"] == {"line": 1, "of": 1, "words": 3}


def test_the_collector_stores_the_sum_once_all_lines_have_come(agentos_fake_kernel: FakeKernel) -> None:
    agentos_fake_kernel.reply("store", {"key": "words", "version": 1})
    for line, words in ((2, 4), (1, 3)):
        agentos_fake_kernel.deliver({"line": line, "of": 2, "words": words})

    agentos_fake_kernel.start(HERE / "collector.py")

    assert agentos_fake_kernel.wait_for("store").fields["value"] == 7
    agentos_fake_kernel.assert_called("store", times=1)


@pytest.mark.agentos_config("agentos.toml")
def test_all_stages_together(agentos_kernel: RunningKernel) -> None:
    text = (HERE / "input.txt").read_text()

    line = agentos_kernel.wait_for_line(r"collector \| .* words in")

    assert f"{len(text.split())} words in {len(text.splitlines())} lines" in line
