"""Operations of kernels that Python cannot express.

`prefetch` for scattered rows, `copy_rows` for bytes, `count_ones` and `first_one` for bits.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_BYTE_POINTER, _INT = ir.IntType(8).as_pointer(), ir.IntType(32)
_WORD, _CACHE_LINE = 8, 64
_READ = _INT(0)
_KEEP_IN_CACHE = _INT(3)
_DATA = _INT(1)
_ZERO_IS_UNDEFINED = ir.IntType(1)(1)


def _prefetch(typing_context: Any, array: Any, row: Any) -> Any:
    del typing_context, row

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        try:
            rows = context.make_array(array_type)(context, builder, arguments[0])
            pointer = cgutils.get_item_pointer(context, builder, array_type, rows, [arguments[1]])
            first = builder.bitcast(pointer, _BYTE_POINTER)
            size = min(context.get_abi_sizeof(context.get_data_type(array_type.dtype)), _CACHE_LINE)
            function_type = ir.FunctionType(ir.VoidType(), [_BYTE_POINTER, _INT, _INT, _INT])
            function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0i8")
            # An item of at most one word lies in one cache line.
            for at in [0] if size <= _WORD else [0, size - 1]:
                builder.call(function, [builder.gep(first, [_INT(at)]), _READ, _KEEP_IN_CACHE, _DATA])
        except (AttributeError, TypeError, ValueError):
            pass  # Other versions of numba or llvmlite: the kernel is correct without the hint.
        return context.get_dummy_value()

    return types.void(array, types.intp), emit


# Records of one share-partition lie far apart: with prefetching, the fold takes half the time.
prefetch: Any = intrinsic(_prefetch)
"""prefetch(array, row): begin to load the first 64 bytes of array[row] into the CPU's cache; the row must
exist.

Source: LLVM Language Reference, llvm.prefetch.
"""


def _copy_rows(typing_context: Any, source: Any, begin: Any, target: Any, to: Any, count: Any) -> Any:
    del typing_context, begin, to, count
    array_types = source, target

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        first, into = (
            cgutils.get_item_pointer(
                context, builder, kind, context.make_array(kind)(context, builder, array), [at]
            )
            for kind, array, at in zip(array_types, arguments[0:4:2], arguments[1:4:2], strict=True)
        )
        size = context.get_abi_sizeof(context.get_data_type(source.dtype))
        cgutils.raw_memmove(builder, into, first, arguments[4], size)
        return context.get_dummy_value()

    return types.void(source, types.intp, target, types.intp, types.intp), emit


copy_rows: Any = intrinsic(_copy_rows)
"""copy_rows(source, begin, target, to, count): copy `count` rows from source[begin:] to target[to:], in
kernels.

Both arrays are contiguous and of one type, and may be the same array. The caller checks that the rows exist.

Source: LLVM Language Reference, llvm.memmove.
"""


def _count_ones(typing_context: Any, word: Any) -> Any:
    del typing_context, word

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), emit


count_ones: Any = intrinsic(_count_ones)
"""count_ones(word): number of bits that are set in an int64.

Source: LLVM Language Reference, llvm.ctpop.
"""


def _first_one(typing_context: Any, word: Any) -> Any:
    del typing_context, word

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.cttz(arguments[0], _ZERO_IS_UNDEFINED)

    return types.int64(types.int64), emit


first_one: Any = intrinsic(_first_one)
"""first_one(word): number of the lowest bit that is set in an int64, which is not 0.

Source: LLVM Language Reference, llvm.cttz.
"""
