"""Config section of the device mesh and the sharding of parameters over it."""

from typing import Literal

from vit_jax.errors import ConfigError
from vit_jax.schema import Section, check_patterns, option

Preset = Literal["replicated", "fsdp", "fsdp_tensor"]


class MeshConfig(Section):
    """Number of devices along each mesh axis, and sharding. One axis may be -1: all other devices.

    Batches are always sharded over data x fsdp.
    """

    data: int = option(-1, at_least=-1, changes_result=False)
    """Copies of the model, which share a batch. -1: all devices that the other axes leave."""
    fsdp: int = option(1, at_least=-1, changes_result=False)
    """Devices that share a batch and also the parameters and optimizer state."""
    tensor: int = option(1, at_least=-1, changes_result=False)
    """Devices that share the computation of each layer."""
    slices: int = option(-1, at_least=-1, changes_result=False)
    """Number of TPU slices or GPU nodes. data is divided among them first, then fsdp; tensor stays
    inside one. -1: what the devices say. Another number is compared with what they say, or cuts
    devices that say nothing (CPUs) into equal groups.
    """
    preset: Preset = option("fsdp_tensor", changes_result=False)
    """Mesh axes over which parameters and optimizer state are sharded: none; fsdp; fsdp and
    tensor. With tensor=1, fsdp_tensor is the same as fsdp.
    """
    rules: tuple[tuple[str, tuple[Literal["data", "fsdp", "tensor"] | None, ...]], ...] = option(
        (), changes_result=False
    )
    """(regular expression, mesh axes) pairs that have priority over the preset. The first that
    matches the whole parameter name is used. The axes shard the last dimensions, e.g.
    ("head/linear/kernel", (None, "tensor")); dimensions before them are not sharded.
    """

    def check(self) -> None:
        sizes = (self.data, self.fsdp, self.tensor)
        if 0 in sizes or sizes.count(-1) > 1:
            raise ConfigError(
                f"mesh data={self.data}, fsdp={self.fsdp}, tensor={self.tensor}",
                "positive sizes and at most one -1",
                "set the sizes so that their product is the number of devices",
            )
        if self.slices == 0:
            raise ConfigError(
                "is 0", "-1, or the number of slices", "set mesh.slices=-1", key="slices"
            )
        for pattern, rule in self.rules:
            axes = [axis for axis in rule if axis is not None]
            if len(set(axes)) < len(axes):
                raise ConfigError(
                    f"has the rule {rule} for {pattern!r}",
                    "each axis at most once",
                    "remove one",
                    key="rules",
                )
        check_patterns([pattern for pattern, _ in self.rules], "rules")
