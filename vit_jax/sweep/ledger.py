"""What a sweep has asked, chosen and reached, kept in its folder: job.json, sweep.json."""

from collections.abc import Callable
from typing import Any

from vit_jax.errors import SweepError
from vit_jax.sweep.board import Board, changes
from vit_jax.sweep.plan import Plan, PlannedJob
from vit_jax.sweep.records import read_json, write_json
from vit_jax.sweep.selection import choose


class Ledger:
    """The board of a sweep and the choices that were made by it.

    Args:
        plan: the jobs.
        asked: what sweep.json says besides the jobs.
        retry_failed: run jobs that have failed before again.
        say: tells a person a line.

    Attributes:
        board: where every job stands.
        made: selection -> its choice, as job.json tells it.

    Raises:
        SweepError: the folder is of another sweep, or a job in it has run with other settings than
            are asked for now.
    """

    def __init__(
        self, plan: Plan, *, asked: dict[str, Any], retry_failed: bool, say: Callable[[str], None]
    ):
        self.plan, self._asked, self._say = plan, asked, say
        self.made: dict[str, dict[str, Any]] = {}
        _check_same_sweep(plan)
        self.board = Board(plan, retry_failed=retry_failed)
        self.update({})
        for job in plan.jobs.values():
            if not job.undecided:
                _check_unchanged(job)
                if job.result.exists():  # Its labels may be new.
                    self.write_about(job)
        self.write_sweep()

    def update(self, running: dict[str, str]) -> None:
        """Looks where every job stands, and makes every choice whose candidates are done.

        Args:
            running: name -> "running" or "queued", of jobs that an engine has.
        """
        self.board.update(running)
        decided = [group for group in self.plan.choices if self._decide(group)]
        if decided:
            self.write_sweep()
            self.update(running)

    def write_about(self, job: PlannedJob) -> None:
        """Writes job.json of a job, where it is not there already."""
        about = job.about(self.plan.sweep.spec)
        if read_json(job.folder / "job.json") != about:
            write_json(job.folder / "job.json", about)

    def write_sweep(self) -> None:
        """Writes sweep.json: what was asked, where it stands, what was chosen."""
        jobs = [
            {"name": name, "stage": row.job.stage, "state": row.state, "needs": list(row.job.needs)}
            for name, row in self.board.rows.items()
        ]
        content = {**self._asked, "jobs": jobs, "selections": self.made}
        write_json(self.plan.folder / "sweep.json", content)

    def _decide(self, group: str) -> bool:
        """Makes a choice if it can be made now; returns whether it was."""
        choice = self.plan.choices[group]
        rows = [self.board.rows[name] for name in choice.candidates]
        enough = {"finished"}
        if choice.selection.on_failed == "skip":
            enough |= {"failed", "blocked"}
        if group in self.made or not all(row.state in enough for row in rows):
            return False
        try:
            made = choose(choice.selection, [(row.job.name, row.result) for row in rows])
        except SweepError as error:
            self.made[group] = {"error": str(error)}
            for name in choice.finals:
                self.board.fail(name, str(error))
            self._say(str(error))
            return True
        self.made[group] = made
        self.plan.decide(group, made)
        score = f"{made['metric']} {made['score']:.4f}"
        self._say(f"{group}: chose {made['chosen']} of {len(rows)} by {score}")
        return True


def _check_same_sweep(plan: Plan) -> None:
    """A sweep file may gain and lose jobs; another that shares none with it has another folder."""
    known = read_json(plan.folder / "sweep.json") or {}
    names = {job["name"] for job in known.get("jobs", ())}
    if names and known.get("sweep") != plan.sweep.spec and names.isdisjoint(plan.jobs):
        raise SweepError(
            f"sweep folder {plan.folder} is of {known.get('sweep')}, which has no job of"
            f" {plan.sweep.spec}",
            "a folder for each sweep", "choose another --workdir, or remove this one",
        )  # fmt: skip


def _check_unchanged(job: PlannedJob) -> None:
    told = changes(job)
    if told is not None:
        state = "finished" if job.result.exists() else "half done"
        raise SweepError(
            f"job {job.name!r} is {state} with other settings than the sweep file has now ({told})",
            "the settings that it was started with",
            f"undo the change, give the job another name, or remove {job.folder} to run it anew",
        )
