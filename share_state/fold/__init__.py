"""The algebra: which records make a chain, what they fold to, what may be cleaned. Never Spark."""

from share_state import kernels

kernels.keep()
