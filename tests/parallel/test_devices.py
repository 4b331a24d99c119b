"""Which devices are in use, and which lie idle."""

import os

import pytest

from vit_jax.errors import ConfigError
from vit_jax.parallel.devices import check_devices, local_devices


def row(host="a", platform="gpu", count=4, allocated=None, node=None):
    return {
        "host": host,
        "node": node,
        "pid": 7,
        "platform": platform,
        "kind": f"{platform} kind",
        "ids": list(range(count)),
        "allocated": allocated,
    }


@pytest.mark.parametrize(
    "rows",
    [
        [row("a", allocated=4), row("b", allocated=4)],
        [row("a", count=1, allocated=4)] * 4,  # One process for each GPU.
    ],
)
def test_a_run_that_uses_all_accelerators_starts(rows):
    check_devices(rows)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row("a", count=1, allocated=4)], "1 of 4 accelerators of a in use"),
        ([row("a", count=1, allocated=4)] * 3, "3 of 4 accelerators of a in use"),
        ([row("a", "cpu", 1, allocated=4)],
         "none of 4 accelerators of a in use: JAX found only cpu kind"),
        # Two emulated nodes share a host name and are counted separately.
        ([row("a", count=2, allocated=2, node="0"), row("a", count=1, allocated=2, node="1")],
         "1 of 2 accelerators of a in use"),
        ([row("a"), row("b", "cpu", 1)], "processes on different platforms"),
    ],
)  # fmt: skip
def test_idle_accelerators_are_an_error(rows, message):
    with pytest.raises(ConfigError) as caught:
        check_devices(rows)
    assert str(caught.value).startswith(message)


def test_gpus_may_be_idle_if_the_cpu_is_requested(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert os.environ["JAX_PLATFORMS"] == "cpu"
    assert local_devices(None)["allocated"] is None
