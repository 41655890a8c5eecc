"""Predictions: when what waits will start."""
