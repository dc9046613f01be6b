"""The commands of `share-state`, one module per command or small group of them; `main` loads the one that was typed.

`command` registers a function as a command; `process` and `output` are for all: signals and memory, notes and
errors.

Importing this package configures the process before numpy and other large packages are imported.
"""

import gc
import os

# Imported modules stay: scanning them after every 700 new objects takes a tenth of a small command.
gc.set_threshold(100_000)
# numpy's linear algebra, which no command uses, would start one spinning thread per core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
