import psutil
import pytest

from vit_jax import memory
from vit_jax.errors import MemoryLimitError


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (40e12, "40.0 TB"), (3e21, "3e+03 EB")],
)
def test_bytes_are_shown_with_a_unit(count, text):
    assert memory.shown_bytes(count) == text


def test_the_limit_of_a_container_counts(tmp_path, monkeypatch):
    total = psutil.virtual_memory().total
    limits = [tmp_path / "v2", tmp_path / "v1"]
    monkeypatch.setattr(memory, "_CGROUP_LIMITS", limits)
    assert memory.machine_bytes() == total
    limits[0].write_text("max\n")
    limits[1].write_text("9223372036854771712\n")  # No limit, in version 1.
    assert memory.machine_bytes() == total
    limits[0].write_text("1000000\n")
    assert memory.machine_bytes() == 1_000_000


def test_what_does_not_fit_is_refused_with_both_sizes():
    memory.check_fits(10, "ten bytes", "use nine", limit=10)
    with pytest.raises(MemoryLimitError) as caught:
        memory.check_fits(11, "eleven bytes", "use ten", limit=10)
    assert str(caught.value) == (
        "11 B for eleven bytes; this machine has 10 B; expected a size that fits the memory;"
        " use ten"
    )
