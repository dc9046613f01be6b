"""Tells the CPU which row of an array a compiled kernel reads next, so that many rows are on their way at once."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_BYTE = ir.IntType(8).as_pointer()
_NUMBER = ir.IntType(32)
_WORD, _LINE = 8, 64
_READ, _KEEP, _DATA = _NUMBER(0), _NUMBER(3), _NUMBER(1)


def _prefetch(typing_context: Any, array: Any, row: Any) -> Any:
    del typing_context, row

    def made(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kind = signature.args[0]
        rows = context.make_array(kind)(context, builder, given[0])
        at = cgutils.get_item_pointer(context, builder, kind, rows, [given[1]])
        first = builder.bitcast(at, _BYTE)
        size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        asked = ir.FunctionType(ir.VoidType(), [_BYTE, _NUMBER, _NUMBER, _NUMBER])
        function = cgutils.get_or_insert_function(builder.module, asked, "llvm.prefetch.p0i8")
        # What is not larger than a word lies in one line.
        places = [0] if size <= _WORD else [*range(0, size - 1, _LINE), size - 1]
        for place in places:
            builder.call(function, [builder.gep(first, [_NUMBER(place)]), _READ, _KEEP, _DATA])
        return context.get_dummy_value()

    return types.void(array, types.intp), made


prefetch: Any = intrinsic(_prefetch)
"""prefetch(array, row): begin to load array[row], all of it; the row must be there.

Nothing changes but the time. Source: LLVM Language Reference, llvm.prefetch.
"""
