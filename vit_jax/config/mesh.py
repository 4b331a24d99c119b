"""The config section that says how devices are arranged and what lies where."""

from typing import Literal

from vit_jax.errors import ConfigError
from vit_jax.schema import Section, check_patterns, option

Preset = Literal["replicated", "fsdp", "fsdp_tensor"]


class MeshConfig(Section):
    """Devices along each axis of the mesh, -1, at most once, taking the rest; and what lies where.

    Examples are divided over data x fsdp, whatever the preset.
    """

    data: int = option(-1, at_least=-1, changes_result=False)
    fsdp: int = option(1, at_least=-1, changes_result=False)
    tensor: int = option(1, at_least=-1, changes_result=False)
    preset: Preset = option("fsdp_tensor", changes_result=False)
    """What parameters and optimizer state are cut over: nothing; fsdp; fsdp and tensor. An axis
    of one device cuts nothing, so that fsdp_tensor with tensor=1 is fsdp.
    """
    rules: tuple[tuple[str, tuple[Literal["data", "fsdp", "tensor"] | None, ...]], ...] = option(
        (), changes_result=False
    )
    """(regular expression, axes) pairs that go before the preset's; the first that matches the
    whole name counts. The axes are those of the last dimensions, e.g. ("head/linear/kernel",
    (None, "tensor")); what is left out on the left is not cut.
    """
    gradient_dtype: Literal["float32", "bfloat16"] | None = option(None)
    """Type in which the gradient of a parameter is summed, over the examples of a device and
    over devices, before it becomes float32; None: the type that its layer computes in.
    """

    def check(self) -> None:
        sizes = (self.data, self.fsdp, self.tensor)
        if 0 in sizes or sizes.count(-1) > 1:
            raise ConfigError(
                f"mesh data={self.data}, fsdp={self.fsdp}, tensor={self.tensor}",
                "positive sizes and at most one -1",
                "set the sizes so that their product is the number of devices",
            )
        for pattern, rule in self.rules:
            axes = [axis for axis in rule if axis is not None]
            if len(set(axes)) < len(axes):
                raise ConfigError(
                    f"rule {rule} for {pattern!r} in 'rules'", "each axis once", "remove one"
                )
        check_patterns([pattern for pattern, _ in self.rules], "rules")
