"""The config section of profiler traces."""

import re

from vit_jax.errors import ConfigError
from vit_jax.schema import Section, option


class ProfileConfig(Section):
    """Records a profiler trace of some steps on the first host, into `profile/` of the run."""

    steps: str | None = option(None)
    """First and last step to trace, e.g. "100:110"; None: no trace."""

    @property
    def first_and_last(self) -> tuple[int, int] | None:
        if self.steps is None:
            return None
        first, last = self.steps.split(":")
        return int(first), int(last)

    def check(self) -> None:
        match = re.fullmatch(r"(\d+):(\d+)", self.steps or "1:1")
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ConfigError(
                f"is {self.steps!r}",
                "FIRST:LAST, the first and the last step to trace, from 1",
                "use e.g. 100:110",
                key="steps",
            )
