"""Which signals stop a run."""

import os
import signal
import threading

import pytest

from vit_jax.train.signals import StopSignals
from vit_jax.warning_signals import WARNING_SIGNALS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, *WARNING_SIGNALS])
def test_a_signal_asks_to_stop_and_gets_its_handler_back(number):
    mine = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, mine)  # pytest may have been started by nohup.
    try:
        with StopSignals("stopping") as stop:
            os.kill(os.getpid(), number)
            assert stop.requested
        assert signal.getsignal(number) is mine
    finally:
        signal.signal(number, before)


def test_a_warning_that_is_ignored_or_handled_by_others_is_left_alone(monkeypatch):
    """nohup ignores SIGHUP, submitit handles SIGUSR2, and a sweep's launcher takes no warning."""
    received = []
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    handled = signal.signal(signal.SIGUSR2, lambda number, frame: received.append(number))
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGUSR2)
        assert not stop.requested
        assert received == [signal.SIGUSR2]
    finally:
        signal.signal(signal.SIGHUP, ignored)
        signal.signal(signal.SIGUSR2, handled)
    with StopSignals(warnings=False):
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_another_thread_handles_no_signal():
    found = []

    def enter():
        with StopSignals() as stop:
            found.append((stop.requested, signal.getsignal(signal.SIGTERM)))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [(False, before)]
