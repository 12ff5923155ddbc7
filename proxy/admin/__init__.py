"""The admin port: what people, probes and Prometheus read of the running proxy over HTTP.

It lies above everything but the server, which hands it what its pages show; nothing below imports a page.

pages        which page each path is, and the port    http_server  HTTP in the event loop by h11, all of it bounded
exposition   /metrics: Prometheus families and text   throttles    /throttles: connections that a quota holds now
healthcheck  asks a running proxy from another process   fleet   /fleet: who shares limits with this proxy
activity     /clients, /limits, /brokers: the last minute   tables  the same as tables, and for the command `top`
verdict      what holds each client                      explain    /explain: the same in sentences
limit_advice  what a limit allows, and where to raise it
plain_text   who asks for text, amounts, aligned tables
"""
