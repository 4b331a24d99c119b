"""Speed and memory of a run: images/s, time spent waiting for data, MFU, memory."""

import concurrent.futures
import logging
import time

import jax
import psutil

from vit_jax.train.chips import peak_flops

log = logging.getLogger(__name__)


class DeviceClock:
    """Measures when the device became idle. A thread waits for the newest step to finish."""

    def __init__(self) -> None:
        self._waiter = concurrent.futures.ThreadPoolExecutor(1, "device-clock")
        self._done: concurrent.futures.Future[float] | None = None

    def close(self) -> None:
        """Stops the thread."""
        self._waiter.shutdown(wait=False, cancel_futures=True)

    def watch_step(self, result: jax.Array) -> None:
        """Starts to wait for a step that was just dispatched, given one of its outputs."""
        self._done = self._waiter.submit(_time_when_ready, result)

    @property
    def is_started(self) -> bool:
        return self._done is not None

    def idle_since(self) -> float | None:
        """Returns the time at which the newest step finished; None while it is running."""
        if self._done is None or not self._done.done():
            return None
        return self._done.result()


def _time_when_ready(result: jax.Array) -> float:
    jax.block_until_ready(result)
    return time.perf_counter()


class Telemetry:
    """Measures the speed of a run. Time passed to `exclude`, such as evaluation, is not counted.

    `flops_per_image` are the model FLOPs of training.
    """

    def __init__(self, global_batch_size: int, flops_per_image: int):
        device = jax.local_devices()[0]
        self._device = device
        self._batch_size = global_batch_size
        self._flops_per_image = flops_per_image
        self._peak = peak_flops(device.device_kind)
        if self._peak is None:
            log.info("MFU is not logged: the peak FLOP/s of %r is unknown", device.device_kind)
        self._process = psutil.Process()
        self._start = time.perf_counter()
        self._paused = 0.0
        self._waited = 0.0
        self._steps = 0

    def add_data_wait(self, seconds: float) -> None:
        """Adds host time spent waiting for data while the device was idle."""
        self._waited += seconds

    def exclude(self, seconds: float) -> None:
        self._paused += seconds

    def count_step(self) -> None:
        self._steps += 1

    def speed(self) -> dict[str, float]:
        """Returns images/s, step time, data wait and MFU since the last call of `read`."""
        elapsed = max(time.perf_counter() - self._start - self._paused, 1e-9)
        images_per_second = self._steps * self._batch_size / elapsed
        per_device = images_per_second / jax.device_count()
        metrics = {
            "train/images_per_second": images_per_second,
            "train/images_per_second_per_device": per_device,
            "train/step_time_s": elapsed / max(self._steps, 1),
            "train/data_wait_fraction": min(self._waited / elapsed, 1.0),
        }
        if self._peak is not None:
            metrics["train/mfu"] = per_device * self._flops_per_image / self._peak
        return metrics

    def read(self) -> dict[str, float]:
        """Returns the metrics since the last call, and starts a new measurement."""
        metrics = {**self.speed(), "host/rss_mb": self._process.memory_info().rss / 2**20}
        stats = self._device.memory_stats() or {}
        if "peak_bytes_in_use" in stats:
            metrics["device/peak_memory_mb"] = stats["peak_bytes_in_use"] / 2**20
        self._start, self._paused, self._waited, self._steps = time.perf_counter(), 0.0, 0.0, 0
        return metrics
