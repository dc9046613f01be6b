"""Sessions of one process, one after the other."""

import subprocess
import sys

TWICE = """
from share_state.spark.session import session

for _ in range(2):
    with session("local[1]", {}) as spark:
        print(spark.sparkContext.applicationId, sum(spark.sparkContext.parallelize([1, 2]).map(abs).collect()))
"""


def test_a_session_begins_behind_one_that_still_stops():
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, check=True)
    first, second = map(str.split, done.stdout.splitlines())
    assert first[1] == second[1] == "3"
    assert first[0] != second[0]
