"""Everything that touches the private parts of numba and LLVM; what another version lacks is done the plain way.

`compile` has the decorators of kernels and the place of the cache of compiled code; `shared_cache` lets one process
compile a kernel for all. `intrinsics` has operations of kernels that Python cannot express, `native` functions of C
libraries, and `compile_times` reports what numba is compiling. `portable` chooses the CPU that it compiles for.
"""
