# pyarrow.compute makes its functions at import time, so that no type checker sees them.
from typing import Any

def __getattr__(name: str) -> Any: ...
