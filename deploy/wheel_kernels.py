"""Builds the wheel with compiled kernels if SHARE_STATE_KERNELS is set; without them, machines compile their own.

Such a wheel is for one Python and one platform. It is built in an environment in which share_state is installed:

    share-state setup && SHARE_STATE_KERNELS=1 pip wheel --no-deps --no-build-isolation .
"""

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "SHARE_STATE_KERNELS"


class KernelsHook(BuildHookInterface):
    """Adds the kernels that `share-state setup` compiled for every CPU."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the folder of the kernels and the platform."""
        del version
        if not os.environ.get(VARIABLE):
            return
        from share_state.jit.portable import compile_for_every_cpu  # noqa: PLC0415  an isolated build lacks it

        compile_for_every_cpu()
        from share_state.jit.compile import SHIPPED, portable_kernels  # noqa: PLC0415  imports numba

        if (kernels := portable_kernels()) is None:
            raise SystemExit(
                f"{VARIABLE}: no compiled kernels of these sources; run `share-state setup` first"
            )
        for source in kernels.rglob("*.nb[ci]"):
            target = f"share_state/{SHIPPED}/{kernels.name}/{source.relative_to(kernels).as_posix()}"
            build_data["force_include"][str(source)] = target
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
