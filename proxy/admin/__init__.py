"""The admin port: what people, probes and Prometheus read from the running proxy over HTTP.

It is above everything except the server, which passes it what its pages show; no lower package imports a page.

pages        which page each path is, and the port    http_server  HTTP in the event loop by h11, all of it bounded
exposition   /metrics: Prometheus families and text   throttles    /throttles: connections that a quota holds now
healthcheck  asks a running proxy from another process   fleet_page  /fleet: the members that share limits
activity     /clients, /limits, /brokers: the last minute   tables  these pages as tables, also for the command `top`
activity_rows  the figures of one client, limit or broker
history      takes the snapshots of the last minutes        answer_page/  "is it the proxy?", and the page for browsers
fleet_members  asks all members of a fleet for a page       fleet_view  their answers as one: sums, and sentences
verdict      what holds each client                      explain    /explain: the verdicts in sentences
limit_advice  what a limit allows, and where to raise it
plain_text   which requests want text; amounts, aligned tables
"""
