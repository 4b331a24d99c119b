"""The most expensive operations of a trace, computed by hand."""

import pytest
from jax.profiler import ProfileData

from vit_jax.train.operations import find_operations

pytestmark = pytest.mark.slow

# Two steps on one device. The loop of 60 us contains two runs of a fusion, of 10 us each.
TPU = """
planes { name: "/device:TPU:0"
  event_metadata { key: 1 value { id: 1 name: "%while.1 = (f32[8]) while(%tuple), body=%body" } }
  event_metadata { key: 2 value { id: 2 name: "%fusion.7 = f32[8] fusion(%p), kind=kLoop" } }
  lines { name: "XLA Modules" events { metadata_id: 1 offset_ps: 0 duration_ps: 100000000 } }
  lines { name: "XLA Ops"
    events { metadata_id: 1 offset_ps: 0 duration_ps: 60000000 }
    events { metadata_id: 2 offset_ps: 0 duration_ps: 10000000 }
    events { metadata_id: 2 offset_ps: 20000000 duration_ps: 10000000 }
    events { metadata_id: 2 offset_ps: 60000000 duration_ps: 10000000 }
  }
}
planes { name: "/host:CPU" lines { name: "python"
  events { metadata_id: 1 offset_ps: 0 duration_ps: 900000000 } } }
"""
GPU = """
planes { name: "/device:GPU:0"
  stat_metadata { key: 1 value { id: 1 name: "hlo_op" } }
  stat_metadata { key: 2 value { id: 2 name: "hlo_module" } }
  event_metadata { key: 1 value { id: 1 name: "nvjet_hsh_128x256" } }
  event_metadata { key: 2 value { id: 2 name: "MemcpyD2D" } }
  lines { name: "Stream #13(compute)"
    events { metadata_id: 1 offset_ps: 0 duration_ps: 30000000
      stats { metadata_id: 1 str_value: "fusion.7" }
      stats { metadata_id: 2 str_value: "jit_step_fn" } }
    events { metadata_id: 1 offset_ps: 60000000 duration_ps: 6000000
      stats { metadata_id: 1 str_value: "fusion.7" }
      stats { metadata_id: 2 str_value: "jit_eval" } }
    events { metadata_id: 2 offset_ps: 80000000 duration_ps: 4000000 }
  }
  lines { name: "Framework Ops" events { metadata_id: 1 offset_ps: 0 duration_ps: 90000000 } }
}
"""
# XLA numbers parents from 1 more than the frames.
PROGRAM = """HloModule jit_step_fn, is_scheduled=true

FileNames
1 "/home/me/vit_jax/train/step.py"
2 "/usr/lib/flax/nnx.py"
3 "/home/me/vit_jax/models/mlp.py"

FunctionNames
1 "step_fn"

FileLocations
1 {file_name_id=1 function_name_id=1 line=83 end_line=83 column=1 end_column=2}
2 {file_name_id=3 function_name_id=1 line=58 end_line=58 column=1 end_column=2}
3 {file_name_id=2 function_name_id=1 line=7 end_line=7 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=3 parent_frame_id=3}

ENTRY %main {
  %fusion.7 = f32[8]{0} fusion(%p), kind=kLoop, metadata={op_name="jit(step_fn)/transpose(jvp())/while/body/dot_general" stack_frame_id=3}
  ROOT %while.1 = (f32[8]) while(%tuple), body=%body, metadata={op_name="jit(step_fn)/while" stack_frame_id=1}
}
"""  # noqa: E501


def operations(tmp_path, text, steps=2):
    path = tmp_path / "trace.xplane.pb"
    path.write_bytes(ProfileData.text_proto_to_serialized_xspace(text))
    return find_operations(
        path, "steps 3 to 4", steps=steps, devices=1, program=PROGRAM, module="jit_step_fn"
    )


def test_operations_of_a_tpu_without_those_inside_them(tmp_path):
    found = operations(tmp_path, TPU)
    loop, fusion = found.shown
    # 60 us less the two fusions of 10 us inside it, over 2 steps.
    assert (loop.name, loop.part, loop.op_name, loop.source, loop.runs) == (
        "while.1", "outside the gradient", "while", "vit_jax/train/step.py:83", 0.5,
    )  # fmt: skip
    assert (fusion.name, fusion.part, fusion.op_name, fusion.source, fusion.runs) == (
        "fusion.7", "backward, in the layers", "dot_general", "vit_jax/models/mlp.py:58", 1.5,
    )  # fmt: skip
    assert [loop.ms, fusion.ms, found.ms] == pytest.approx([0.02, 0.015, 0.035])
    assert [loop.share, fusion.share, found.count] == pytest.approx([4 / 7, 3 / 7, 2])


def test_kernels_of_a_gpu_of_other_programs_and_without_a_name(tmp_path):
    rows = [(one.name, one.ms, one.part, one.source) for one in operations(tmp_path, GPU, 1).shown]
    assert rows == [
        ("fusion.7", pytest.approx(0.03), "backward, in the layers", "vit_jax/models/mlp.py:58"),
        ("fusion.7", pytest.approx(0.006), "program jit_eval", ""),
        ("MemcpyD2D", pytest.approx(0.004), "added by XLA", ""),
    ]


def test_the_table_in_markdown_and_csv(tmp_path):
    found = operations(tmp_path, GPU, 1)
    lines = found.markdown().splitlines()
    assert lines[0] == (
        "# steps 3 to 4: 3 of 3 operations take 100% of the time of all operations"
        " (0.04 ms per step)"
    )
    assert lines[4] == (
        "| fusion.7 | 0.030 | 75.0% | 1 | backward, in the layers | dot_general |"
        " vit_jax/models/mlp.py:58 |"
    )
    assert found.csv().splitlines()[0] == "name,ms,share,runs,part,op_name,source"


def test_a_trace_without_operations(tmp_path):
    assert operations(tmp_path, 'planes { name: "/host:CPU" }').shown == ()
