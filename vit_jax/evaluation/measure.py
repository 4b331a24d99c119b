"""Measures a model on a source: the way from a dataset to its metrics."""

from collections.abc import Callable, Iterator

from jax.sharding import Mesh

from vit_jax.data.arrays import Preprocessing
from vit_jax.data.loader import BatchSpec, HostBatch, eval_batches, on_device
from vit_jax.data.sources import Source
from vit_jax.evaluation.loop import BatchStep, Totals, evaluate, until
from vit_jax.parallel.processes import gather


def measure(
    source: Source,
    preprocessing: Preprocessing,
    step: BatchStep,
    totals: Totals,
    *,
    spec: BatchSpec,
    mesh: Mesh,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, float]:
    """Adds up the outputs of a jitted step over a source and returns the metrics of the totals.

    Every example counts once, on any number of devices and hosts. With `spec.on_bad_example` "skip"
    those that cannot be read do not count; "skipped_examples" is their number, if there are any.

    Raises:
        StoppedError: `stop`, called before each batch, returned True.
    """
    skipped = 0

    def batches() -> Iterator[HostBatch]:
        nonlocal skipped
        for batch in until(stop, feed):
            skipped += int((batch["skipped"] >= 0).sum())
            yield on_device(batch)

    with eval_batches(source, preprocessing, spec) as feed:
        found = evaluate(step, batches(), mesh, totals)
    if spec.on_bad_example == "skip":
        skipped = sum(gather(f"skipped examples of {source.name}", skipped))
    return found | ({"skipped_examples": skipped} if skipped else {})
