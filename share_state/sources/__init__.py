"""Where records come from: log folders, tables, texts, object stores, a running cluster."""
