"""Which training steps of a run have a line in metrics.jsonl."""

import dataclasses
import itertools
from collections.abc import Collection, Sequence

from vit_jax.errors import first_few


@dataclasses.dataclass(frozen=True)
class LoggedSteps:
    """The steps that are logged: every `logging.interval_steps` steps, and the last.

    A resumed run may have another interval, so checkpoints keep the intervals up to their step.
    """

    total_steps: int
    intervals: tuple[tuple[int, int], ...]  # (n, interval) for each change: it holds after step n

    @classmethod
    def resumed(
        cls, total_steps: int, saved: Sequence[Sequence[int]], step: int, interval: int
    ) -> "LoggedSteps":
        """Returns the logged steps of a run that continues from a step.

        From there on, `interval` holds. The `saved` intervals are empty in a new run, and in
        checkpoints of earlier versions.

        >>> LoggedSteps.resumed(40, [[0, 10]], 20, 5).up_to(30)
        [10, 20, 25, 30]
        """
        before = tuple((after, every) for after, every in saved)
        if before and before[-1][1] == interval:
            return cls(total_steps, before)
        return cls(total_steps, (*before, (step, interval)))

    def __contains__(self, step: int) -> bool:
        """Whether a step after the last change is logged."""
        return step == self.total_steps or step % self.intervals[-1][1] == 0

    def up_to(self, step: int) -> list[int]:
        ends = [after for after, _ in self.intervals[1:]] + [step]
        steps = [
            logged
            for (after, every), end in zip(self.intervals, ends, strict=True)
            for logged in range((after // every + 1) * every, end + 1, every)
        ]
        is_end = step == self.total_steps and self.intervals[0][0] < step
        return steps + [step] * (is_end and step not in steps[-1:])


def missing_steps(expected: Sequence[int], found: Collection[int]) -> str:
    """Describes the expected steps that were not found; "" if none is missing.

    >>> missing_steps([5, 10, 15, 20, 25, 30], {20, 30})
    'steps 5 to 15, 25'
    """
    gaps = [
        list(g) for is_there, g in itertools.groupby(expected, found.__contains__) if not is_there
    ]
    texts = [f"{g[0]:,} to {g[-1]:,}" if len(g) > 1 else f"{g[0]:,}" for g in gaps]
    return f"step{'s' * (sum(map(len, gaps)) > 1)} {first_few(texts, 5)}" if gaps else ""
