"""Questions about any period: who held, used and paid for what.

`query.read` checks what is asked, `answer.run` answers it for one viewer. Below them, `facts` reads
allocations, capacity, prices, quotas and roll-ups; `usage` integrates them over quarter-hours
(pure); `store` keeps past days, so that a year is read rather than computed.
"""
