"""Swap: an idle session's device memory goes to the host, and is back when it is used again.

Begin with `machine` (one attempt's memory: the states and the rules about them), then `loans` (who
is moved for whom, and what wakes it). `memory` is the narrow way to the driver; the calls
themselves are made by a process of their own (`mover`, `driver`), since one of them may hang.
"""
