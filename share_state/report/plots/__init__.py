"""Charts of folded tables: each function takes a table and returns a `Chart`.

A notebook shows a `Chart`; `save` writes it as HTML, SVG or PNG. Tables are Arrow tables or Spark DataFrames
with the columns that schemas/tables declares.
"""

from share_state.report.plots.charts import Chart, save
from share_state.report.plots.overview import cutoffs, deliveries
from share_state.report.plots.timelines import offsets, window

__all__ = ["Chart", "cutoffs", "deliveries", "offsets", "save", "window"]
