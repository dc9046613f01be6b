"""Lets compiled kernels take an index as it is: numba looks at each, at every use, whether it counts from the end.

A kernel's indices are never negative where they are not written out (`rows[-1]` still means the last). Without the look
at their sign decode + fold takes a sixteenth less time, an audit's a thirteenth (bench/README.md).
"""

from typing import Any

from numba.core import ir, types
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.typed_passes import NopythonTypeInference


@register_pass(mutates_CFG=False, analysis_only=False)
class _AsUnsigned(FunctionPass):
    """Types the indices of arrays as unsigned, which have no sign to look at."""

    _name = "indices as unsigned"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    # numba's own passes return whether they changed anything, too.
    def run_pass(self, state: Any) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        calls = state.calltypes
        for node, signature in list(calls.items()):
            if isinstance(node, ir.SetItem) or (isinstance(node, ir.Expr) and node.op == "getitem"):
                rows, index, *value = signature.args
                if isinstance(rows, types.Array) and isinstance(index, types.Integer):
                    # A call's type can be set once.
                    del calls[node]
                    calls[node] = signature.replace(args=(rows, types.uintp, *value))
        return True


class PlainIndices(CompilerBase):
    """numba's own way of compiling with that in it.

    Source: numba developer manual, Customizing the Compiler.
    """

    def define_pipelines(self) -> list[Any]:
        """The passes."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_AsUnsigned, NopythonTypeInference)
        passes.finalize()
        return [passes]
