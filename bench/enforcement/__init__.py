"""What each throttle mode and the broker's own quota do to a client over its limit, and to its neighbour.

    run        one cell for each client library and enforcement: proxy or broker quota, flood, group, neighbour
    outcome    what one cell measured, and its figures
    neighbour  a producer of 1 KB records under its own quota, as a process
    picture    bytes in each second of all cells as a PNG

`docs/enforcement.md` has the table, the picture and how each column is counted.
"""
