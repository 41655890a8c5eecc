"""GPU fractions: what holds a session to its share of a device's memory and of its time.

`mechanism` chooses what a node uses; `build` makes the C parts (`native/`, `fake/`); `limits` and
`region` are the two files that C and Python share; `install` puts all of it into a workload's view.
"""
