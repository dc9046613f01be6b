"""The same log through Kafka's own classes and through share_state; see bench/README.md for what is counted."""

from share_state.jit.portable import compile_for_every_cpu

# As commands do, before numba is imported.
compile_for_every_cpu()
