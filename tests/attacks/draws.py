"""How attacks are drawn, how a command is attacked, and what it may do."""

import dataclasses
import os
import random

from vit_jax.__main__ import main

SEED = int(os.environ.get("ATTACK_SEED", "0"))
"""Seed of all attacks."""
MANY = int(os.environ.get("ATTACKS", "0"))
"""How many attacks of a kind are made; 0: the few of the default tests."""


class Draw:
    """Draws the attacks of a test; each test has its own random numbers."""

    def __init__(self, name):
        self.count, self.total = 0, 0
        self.random = random.Random(f"{SEED} {name}")

    def some(self, attacks, few):
        """Returns at most `few` of the attacks, or MANY."""
        attacks = list(attacks)
        self.total += len(attacks)
        attacks = self.random.sample(attacks, min(MANY or few, len(attacks)))
        self.count += len(attacks)
        return attacks


@dataclasses.dataclass
class Outcome:
    """What a command has left: exit code, standard output and error, and log lines."""

    code: int
    out: str
    err: str
    log: str = ""

    @property
    def errors(self):
        """The lines of error."""
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


class Commands:
    """Runs commands in this process; use the fixtures capfd and caplog."""

    def __init__(self, capfd, caplog):
        self._capfd, self._caplog = capfd, caplog

    def __call__(self, *arguments):
        self._capfd.readouterr()
        self._caplog.clear()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as error:
            code = error.code
        return Outcome(code, *self._capfd.readouterr(), self._caplog.text)


def check(outcome, attack, codes=(0, 2)):
    """Checks that a command succeeded, or failed with one line of error."""
    about = f"{attack}: exit code {outcome.code}\n{outcome.err[-3000:]}"
    assert outcome.code in codes, about
    assert "Traceback" not in outcome.err + outcome.log, about
    assert len(outcome.errors) == (outcome.code == 2), about
    if outcome.code == 2:
        assert "; expected " in outcome.errors[0], about
