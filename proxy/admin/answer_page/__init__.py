"""Is it the proxy? The answer for all clients, and the page for browsers that starts with it.

This package is above the pages of the admin port, whose rows it judges and draws; the server passes it to them.

answer  the causes why clients wait, in sentences, the worst first    rows       rows as text and parts of a line
served  /answer, and / for browsers                                  page.html  draws them
"""
