"""Questions about any period: who held, used and paid for what.

`query.read` checks what is asked, `answer.run` answers it for one viewer. Below them, `facts` reads
allocations, capacity, prices, quotas and roll-ups; `usage` integrates them over quarter-hours
(pure); `keeping` keeps past days and months and `store` reads them, so that a year is read rather
than computed; `events` and `ended` do likewise for what is counted when it ends.
"""
