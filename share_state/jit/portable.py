"""The CPU that kernels are compiled for; it is chosen before numba is imported, so nothing here imports it."""

import os
import sys

CPU_VARIABLE = "NUMBA_CPU_NAME"
"""numba's setting: the name of the CPU that it compiles for; by default that of the machine."""

PORTABLE_CPU = "generic"
"""Its value for code that runs on every CPU of an architecture; the fold is 1 to 3 % slower than for the host's."""


def compile_for_every_cpu() -> None:
    """Let numba compile for every CPU of this architecture, here and in the processes that this one starts.

    Kernels that one machine has compiled then serve another with another CPU. CPU_VARIABLE overrides it. A
    process that has loaded numba already may compile functions of others, and is left as it is.
    """
    if "numba" not in sys.modules:
        os.environ.setdefault(CPU_VARIABLE, PORTABLE_CPU)
