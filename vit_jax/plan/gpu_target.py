"""Describes a GPU to XLA's compiler, so that it compiles for GPUs that are not there."""

import dataclasses

KIB, MIB = 2**10, 2**20


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What all GPUs of one compute capability have in common.

    Source: "Compute Capabilities" of NVIDIA's CUDA programming guide, and its tuning guides for
    Ampere, Ada, Hopper and Blackwell.
    """

    capability: tuple[int, int]  # compute capability, (major, minor)
    fpus: int  # float32 units of a multiprocessor
    shared_kib: int  # shared memory of a multiprocessor; a block can use all but one KiB
    threads: int  # most threads of a multiprocessor at the same time


AMPERE = Architecture((8, 0), 64, 164, 2048)
AMPERE_RTX = Architecture((8, 6), 128, 100, 1536)
ADA = Architecture((8, 9), 128, 100, 1536)
HOPPER = Architecture((9, 0), 128, 228, 2048)
BLACKWELL = Architecture((10, 0), 128, 228, 2048)


@dataclasses.dataclass(frozen=True)
class GpuTarget:
    """What XLA needs to know about a GPU, besides its memory and bandwidth."""

    architecture: Architecture
    cores: int  # number of multiprocessors
    clock_ghz: float  # highest (boost) clock
    l2_mib: float


# Source: NVIDIA's data sheets and architecture white papers of these GPUs. NVIDIA does not publish
# the multiprocessors and clock of the B200; they are what its driver reports.
GPU_TARGETS = {
    "a100": GpuTarget(AMPERE, 108, 1.41, 40),
    "a100-40gb": GpuTarget(AMPERE, 108, 1.41, 40),
    "a100-pcie": GpuTarget(AMPERE, 108, 1.41, 40),
    "h100": GpuTarget(HOPPER, 132, 1.98, 50),
    "h100-pcie": GpuTarget(HOPPER, 114, 1.755, 50),
    "h200": GpuTarget(HOPPER, 132, 1.98, 50),
    "b200": GpuTarget(BLACKWELL, 148, 1.965, 126.5),
    "l4": GpuTarget(ADA, 58, 2.04, 48),
    "l40": GpuTarget(ADA, 142, 2.49, 96),
    "l40s": GpuTarget(ADA, 142, 2.52, 96),
    "rtx3090": GpuTarget(AMPERE_RTX, 82, 1.695, 6),
    "rtx4090": GpuTarget(ADA, 128, 2.52, 72),
}


def target_config(
    target: GpuTarget, description: str, memory_bytes: float, memory_bandwidth: float
) -> str:
    """Returns the text of XLA's GpuTargetConfigProto for a GPU.

    XLA chooses fusions, tiles and layouts by it. The limits on threads, blocks and registers are
    the same for all GPUs since compute capability 8.0. The CUDA and cuDNN versions are those that
    JAX 0.10 is built for. The bandwidth is in bytes/s.

    >>> text = target_config(GPU_TARGETS["h200"], "NVIDIA H200", 141e9, 4800e9)
    >>> "core_count: 132" in text, "shared_memory_per_block_optin: 232448" in text
    (True, True)
    """
    architecture = target.architecture
    major, minor = architecture.capability
    # Instructions such as Hopper's wgmma exist only in the code for exactly this architecture.
    features = "ACCELERATED_FEATURES" if major >= 9 else "NONE"
    shared = architecture.shared_kib * KIB
    fields = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 48 * KIB,
        "shared_memory_per_block_optin": shared - KIB,
        "shared_memory_per_core": shared,
        "threads_per_core_limit": architecture.threads,
        "core_count": target.cores,
        "fpus_per_core": architecture.fpus,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 2**16 - 1,
        "block_dim_limit_z": 2**16 - 1,
        "registers_per_core_limit": 2**16,
        "registers_per_block_limit": 2**16,
        "memory_bandwidth": int(memory_bandwidth),
        "device_memory_size": int(memory_bytes),
        "l2_cache_size": int(target.l2_mib * MIB),
        "clock_rate_ghz": target.clock_ghz,
    }
    lines = [f"  {name}: {value}" for name, value in fields.items()]
    capability = f"major: {major} minor: {minor} feature_extension: {features}"
    return "\n".join(
        [
            "gpu_device_info {",
            *lines,
            f"  cuda_compute_capability {{ {capability} }}",
            "}",
            'platform_name: "CUDA"',
            "dnn_version_info { major: 9 minor: 10 }",
            "runtime_version { major: 12 minor: 8 }",
            f'device_description_str: "{description}"',
        ]
    )
