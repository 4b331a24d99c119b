"""The 19 tasks of VTAB-1k and their three groups.

Source: arXiv:1910.04867, Table 2; in the order of arXiv:2010.11929, Table 9.
"""

import re
from collections.abc import Iterable

# Name of the mean over all tasks.
ALL = "VTAB (19)"
# Group -> task -> regular expression for its dataset's name in lower case, letters and digits only.
GROUPS: dict[str, dict[str, str]] = {
    "natural": {
        "Caltech101": "caltech101",
        "CIFAR-100": "cifar100",
        "DTD": "dtd",
        "Flowers102": "(oxford)?flowers(102)?",
        "Pets": "(oxford(iiit)?)?pets?",
        "Sun397": "sun397",
        "SVHN": "svhn(cropped)?",
    },
    "specialized": {
        "Camelyon": "(patch)?camelyon",
        "EuroSAT": "eurosat(rgb)?",
        "Resisc45": "resisc45",
        "Retinopathy": "(diabetic)?retinopathy(detection)?.*",
    },
    "structured": {
        "Clevr-Count": "clevr(count|countall|objectcount)",
        "Clevr-Dist": "clevr(dist|distance|closestdistance|closestobjectdistance)",
        "DMLab": "dmlab",
        "dSpr-Loc": "dspr(ites)?(loc|location|labelxposition|xposition|xpos)",
        "dSpr-Ori": "dspr(ites)?(ori|orientation|labelorientation)",
        "KITTI": "kitti(dist|distance|closestvehicledistance)?",
        "sNORB-Azim": "s(mall)?norb(azim|azimuth|labelazimuth|predictazimuth)",
        "sNORB-Elev": "s(mall)?norb(elev|elevation|labelelevation|predictelevation)",
    },
}


def task_of(dataset: str) -> str | None:
    """Returns the VTAB task of a dataset, or None.

    >>> task_of("vtab/oxford_iiit_pet"), task_of("smallnorb_azimuth"), task_of("imagenet2012")
    ('Pets', 'sNORB-Azim', None)
    """
    plain = re.sub(r"[^a-z0-9]", "", re.sub(r"^vtab(-?1k)?[/:_-]", "", dataset.lower()))
    for tasks in GROUPS.values():
        for task, pattern in tasks.items():
            if re.fullmatch(pattern, plain):
                return task
    return None


def grouped(datasets: Iterable[str]) -> dict[str, list[str]] | None:
    """Returns the datasets of each group in the paper's order, and all of them as group ALL.

    None unless all 19 tasks are there.
    """
    names = list(datasets)
    # If there is a vtab_pets, "pets" is the whole dataset, not the VTAB task.
    named = [name for name in names if name.lower().startswith("vtab")]
    by_task = {task_of(dataset): dataset for dataset in named or names}
    if any(task not in by_task for tasks in GROUPS.values() for task in tasks):
        return None
    groups = {name: [by_task[task] for task in tasks] for name, tasks in GROUPS.items()}
    return groups | {ALL: [d for members in groups.values() for d in members]}
