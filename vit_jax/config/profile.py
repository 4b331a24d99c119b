"""The config section of profiler traces."""

import re

from vit_jax.errors import ConfigError
from vit_jax.schema import Section, option


class ProfileConfig(Section):
    """Records a profiler trace of some steps into the folder `profile` of the run."""

    steps: str | None = option(None)
    """First and last step to trace, e.g. "100:110"; None: no trace."""
    hosts: str = option("0")
    """Hosts that write a trace, as numbers of their processes: e.g. "0", "0,8" or "all"."""

    @property
    def first_and_last(self) -> tuple[int, int] | None:
        if self.steps is None:
            return None
        first, last = self.steps.split(":")
        return int(first), int(last)

    def processes(self, count: int) -> list[int]:
        """Returns the numbers of the processes, among `count`, that write a trace."""
        if self.hosts == "all":
            return list(range(count))
        wanted = sorted({int(number) for number in self.hosts.split(",")})
        if wanted[-1] >= count:
            raise ConfigError(
                f"is {self.hosts!r} in a run of {count} processes",
                f"numbers below {count}",
                "correct it, or use all",
                key="profile.hosts",
            )
        return wanted

    def check(self) -> None:
        match = re.fullmatch(r"(\d+):(\d+)", self.steps or "1:1")
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ConfigError(
                f"is {self.steps!r}",
                "FIRST:LAST, the first and the last step to trace, from 1",
                "use e.g. 100:110",
                key="steps",
            )
        if self.hosts != "all" and not re.fullmatch(r"\d+(,\d+)*", self.hosts):
            raise ConfigError(
                f"is {self.hosts!r}", "numbers of processes, or all", "use e.g. 0,8", key="hosts"
            )
