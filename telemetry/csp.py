"""Lets pages with charts carry inline styles, which Plotly sets on its elements; scripts never."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from csp.constants import UNSAFE_INLINE
from csp.decorators import csp_update

# `Any`: views of every signature. `blob:` is what the button that saves a chart as a picture needs.
allows_charts: Callable[[Any], Any] = csp_update(
    {"style-src": [UNSAFE_INLINE], "img-src": ["blob:"]}
)
