"""Data that change between two launches of a run."""

import json
import shutil

import pytest
from attacks.draws import Commands, check
from processes import UNMIXED
from short_runs import SHORT, content

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")  # One device here.


def test_data_that_was_replaced_between_two_runs(run, digits_dir, tmp_path, capfd, caplog):
    """A resumed run compares the fingerprint of its data and refuses other examples."""
    command, data = Commands(capfd, caplog), shutil.copytree(digits_dir, tmp_path / "data")
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints" / "30")
    (info,) = data.glob("digits/*/dataset_info.json")
    described = json.loads(info.read_text())
    for split in described["splits"]:
        split["shardLengths"] = [str(int(n) - 10) for n in split["shardLengths"]]
    info.write_text(json.dumps(described))
    before = content(run)
    outcome = command(
        "train", f"--config={UNMIXED}", f"--workdir={run}", f"--config.data.data_dir={data}", *SHORT
    )
    check(outcome, "ten examples fewer", codes=(2,))
    assert content(run / "checkpoints") == {
        name.removeprefix("checkpoints/"): data
        for name, data in before.items()
        if name.startswith("checkpoints/")
    }
