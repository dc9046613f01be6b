"""Moves rows within their array in one go, for compiled kernels, which copy a row of several fields field by field."""

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _move_rows(typing_context: Any, array: Any, begin: Any, to: Any, count: Any) -> Any:
    del typing_context, begin, to, count

    def made(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kind = signature.args[0]
        rows = context.make_array(kind)(context, builder, given[0])
        source, target = (cgutils.get_item_pointer(context, builder, kind, rows, [at]) for at in given[1:3])
        size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        cgutils.raw_memmove(builder, target, source, given[3], size)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, types.intp), made


move_rows: Any = intrinsic(_move_rows)
"""move_rows(array, begin, to, count): let rows `to` on be what `begin` on was; the array is contiguous, all are there.

Source: LLVM Language Reference, llvm.memmove.
"""
