"""The 19 tasks of VTAB-1k and their three groups.

Source: arXiv:1910.04867, Table 2; in the order of arXiv:2010.11929, Table 9.
"""

import re
from collections.abc import Iterable

# Name of the mean over all tasks.
ALL = "VTAB (19)"
# Group -> regular expression for each task's dataset, in lower case, letters and digits only.
GROUPS = {
    "natural": (
        "caltech101", "cifar100", "dtd", "(oxford)?flowers(102)?", "(oxford(iiit)?)?pets?",
        "sun397", "svhn(cropped)?",
    ),
    "specialized": (
        "(patch)?camelyon", "eurosat(rgb)?", "resisc45", "(diabetic)?retinopathy(detection)?.*",
    ),
    "structured": (
        "clevr(count|countall|objectcount)",
        "clevr(dist|distance|closestdistance|closestobjectdistance)",
        "dmlab",
        "dspr(ites)?(loc|location|labelxposition|xposition|xpos)",
        "dspr(ites)?(ori|orientation|labelorientation)",
        "kitti(dist|distance|closestvehicledistance)?",
        "s(mall)?norb(azim|azimuth|labelazimuth|predictazimuth)",
        "s(mall)?norb(elev|elevation|labelelevation|predictelevation)",
    ),
}  # fmt: skip


def group_tasks(datasets: Iterable[str]) -> dict[str, list[str]]:
    """Returns the datasets of each group, and of all groups as ALL; {} unless all 19 are there."""
    names = list(datasets)
    # If there is a vtab_pets, "pets" is the whole dataset, not the VTAB task.
    names = [name for name in names if name.lower().startswith("vtab")] or names
    plain = {
        re.sub(r"[^a-z0-9]", "", re.sub(r"^vtab(-?1k)?[/:_-]", "", name.lower())): name
        for name in names
    }
    groups = {
        group: [name for task in tasks for key, name in plain.items() if re.fullmatch(task, key)]
        for group, tasks in GROUPS.items()
    }
    complete = all(len(groups[group]) == len(tasks) for group, tasks in GROUPS.items())
    return groups | {ALL: [n for g in groups.values() for n in g]} if complete else {}
