"""Predictions from what was seen: when what waits will start, how long what idles stays idle."""
