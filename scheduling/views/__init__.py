"""Pages: each checks access, reads through selectors, renders page or fragment alike."""
