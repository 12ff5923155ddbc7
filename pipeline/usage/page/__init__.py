"""The HTML report: one file, no network, light and dark.

charts   figures as SVG with CSS classes for colours
content  what the report shows, read from the tables as small aggregates
layout   the file: style, sections, tables
"""
