"""What operators install, executed: image, unit, chart, rules. Tests marked `deploy` need root: `make check-deploy`.

The tests without that mark (templates, schemas, linters) are part of `make check`.
"""
