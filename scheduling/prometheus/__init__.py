"""`/metrics` for Prometheus: devices under DCGM's names, and Allot's own."""
