"""The public API under `/api/v1`: what pages do, for programs."""
