"""Lets pages with charts carry inline styles, which Plotly sets on its elements; scripts never."""

from __future__ import annotations

from csp.constants import UNSAFE_INLINE
from csp.decorators import csp_update

# `blob:` is what the button that saves a chart as a picture needs.
allows_charts = csp_update({"style-src": [UNSAFE_INLINE], "img-src": ["blob:"]})
