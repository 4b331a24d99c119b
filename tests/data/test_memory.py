import numpy as np
import psutil

from vit_jax.data.arrays import ArraySpec, Preprocessing
from vit_jax.data.loader import BatchSpec, train_batches
from vit_jax.data.sources import Example


class _Endless:
    """303 million examples of nothing: the label is the position, modulo 10."""

    name, fingerprint, class_names = "endless", "0", tuple("0123456789")

    def __len__(self) -> int:
        return 303_000_000

    def __getitem__(self, index: int) -> Example:
        assert 0 <= index < len(self)
        return Example(index.to_bytes(4, "little"), index % 10, str(index))

    def read(self, indices):
        return [self[i] for i in indices]


def test_the_permutation_of_303_million_examples_takes_no_memory():
    def make_row(example, rng):
        return {"position": np.frombuffer(example.image, "<u4")[0]}

    def positions(start, end):
        batches = train_batches(
            _Endless(), preprocessing, spec, seed=0, start_step=start, end_step=end
        )
        return [batch["position"].copy() for batch in batches]

    preprocessing = Preprocessing({"position": ArraySpec((), np.uint32)}, make_row)

    spec = BatchSpec(global_batch_size=1000, rows=range(1000), num_threads=0)
    positions(0, 1)  # Memory that only the first use takes.
    process = psutil.Process()
    before = process.memory_info().rss
    # From the beginning, the middle and over the end of the epoch.
    seen = [positions(start, start + 3) for start in (0, 151_500, 302_998)]
    grown = (process.memory_info().rss - before) / 1e6
    assert grown < 3, f"{grown} MB"  # A shuffled array would be 1,212 MB.
    within = np.concatenate([*seen[0], *seen[1], *seen[2][:2]])
    assert len(np.unique(within)) == 8_000
    assert within.max() > 302_900_000
