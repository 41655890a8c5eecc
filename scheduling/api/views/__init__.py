"""Views of the API: each checks access, reads through querysets and selectors, and answers JSON."""
