"""What a notebook calls: read, reconstruct, timeline, explain, cutoff. Arrow tables, or Spark's with a session.

Every function takes paths as the commands do (log folders, .log files, globs, a broker's log directory, tables, texts,
a list of them as one export, or the address of a cluster) and `as_of`, the moment that is meant. Without a session the
logs are folded in this process, one after the other; with one they are spread over its tasks, and what comes back is
lazy.
"""
