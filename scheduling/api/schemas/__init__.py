"""What the API answers: one serialiser per thing, with units in the names.

Words (reasons, events, causes of waits) come from the functions that the pages use, so that page
and API never differ. `null` is "none" or "not known", never 0.
"""
