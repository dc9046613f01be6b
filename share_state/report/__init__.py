"""What people read: tables on a console, the page of an audit, metrics for Prometheus, plots."""
