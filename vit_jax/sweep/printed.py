"""--executor=commands: every job's command, ready for xpk, gcloud or a shell on a pod."""

import shlex

from vit_jax.sweep.board import Board
from vit_jax.sweep.plan import Plan


def command_lines(plan: Plan, board: Board) -> list[str]:
    """Returns the commands of all jobs that are not finished, each after those that it needs.

    Lines that begin with "#" are for people. The final runs of a selection have no settings until
    its candidates are finished: then the same command prints them.
    """
    lines = []
    waiting: dict[str, int] = {}
    for name, row in board.rows.items():
        if row.state == "finished":
            continue
        if row.job.undecided:
            waiting[row.job.undecided] = waiting.get(row.job.undecided, 0) + 1
            continue
        unfinished = [need for need in row.job.needs if board.rows[need].state != "finished"]
        lines.append(f"# {name}" + (f", after {', '.join(unfinished)}" if unfinished else ""))
        lines.append(shlex.join(row.job.command(python="python")))
    for group, count in waiting.items():
        candidates = plan.choices[group].candidates
        lines.append(
            f"# {count} final jobs of {group!r}: run this command again when its "
            f"{len(candidates)} candidates are finished"
        )
    return lines
