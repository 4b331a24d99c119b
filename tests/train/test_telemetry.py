import pytest

import vit_jax.train.telemetry as telemetry_module
from vit_jax.train.chips import peak_flops
from vit_jax.train.telemetry import Telemetry


@pytest.mark.parametrize(
    ("kind", "tflops"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5p", 459),
        ("TPU v6 lite", 918),
        ("cpu", None),
    ],
)
def test_known_devices_have_their_peak_flops(kind, tflops):
    assert peak_flops(kind) == (None if tflops is None else tflops * 1e12)


def test_figures_count_steps_and_waits_but_not_pauses(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(telemetry_module.time, "perf_counter", lambda: now[0])
    telemetry = Telemetry(global_batch_size=10, flops_per_image=1000)
    telemetry.read()
    for _ in range(4):
        telemetry.count_step()
    now[0] += 0.2
    telemetry.add_data_wait(0.05)
    telemetry.exclude(0.1)
    figures = telemetry.read()
    assert figures["train/images_per_second"] == pytest.approx(40 / 0.1)
    assert figures["train/step_time_s"] == pytest.approx(0.1 / 4)
    assert figures["train/data_wait_fraction"] == pytest.approx(0.05 / 0.1)
    assert figures["host/rss_mb"] > 50
    assert "train/mfu" not in figures


def test_an_unknown_device_is_logged_once_and_has_no_mfu(caplog):
    with caplog.at_level("INFO", logger="vit_jax"):
        Telemetry(1, 1).read()
    (record,) = caplog.records
    assert record.getMessage() == "MFU is not logged: the peak FLOP/s of 'cpu' is unknown"


def test_mfu_by_hand(monkeypatch):
    monkeypatch.setattr("vit_jax.train.telemetry.peak_flops", lambda kind: 1e6)
    telemetry = Telemetry(global_batch_size=10, flops_per_image=1000)
    telemetry.read()
    telemetry.count_step()
    figures = telemetry.read()
    want = figures["train/images_per_second_per_device"] * 1000 / 1e6
    assert figures["train/mfu"] == pytest.approx(want)
