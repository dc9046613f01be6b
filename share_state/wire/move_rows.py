"""Moves rows between arrays in one go, for compiled kernels, which copy a row of several fields field by field."""

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _move_rows(typing_context: Any, source: Any, begin: Any, target: Any, to: Any, count: Any) -> Any:
    del typing_context, begin, to, count
    kinds = source, target

    def made(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        del signature
        rows = [context.make_array(kind)(context, builder, at) for kind, at in zip(kinds, given[0:4:2], strict=True)]
        first, into = (
            cgutils.get_item_pointer(context, builder, kind, array, [at])
            for kind, array, at in zip(kinds, rows, given[1:4:2], strict=True)
        )
        size = context.get_abi_sizeof(context.get_data_type(source.dtype))
        cgutils.raw_memmove(builder, into, first, given[4], size)
        return context.get_dummy_value()

    return types.void(source, types.intp, target, types.intp, types.intp), made


move_rows: Any = intrinsic(_move_rows)
"""move_rows(source, begin, target, to, count): let rows `to` on of the target be what `begin` on of the source was.

Both are contiguous and of one type, and may be one array; all these rows are there.

Source: LLVM Language Reference, llvm.memmove.
"""
