"""From flags, environment and files to one frozen `Config`, or a list of every error.

options ─▶ option_types ─▶ values                     each option once, and the form of its value (host_names)
toml_file, quotas_file ─▶ checks, ports ─▶ config     the options together, or an `errors` list
usage ─▶ client_file                                  usage records: the options together, the client's settings
cautions ◀─ floor                                     what is allowed but most likely not meant
exemptions                                            what is exempt, in words
limits_help                                           the keys of SPEC, for the help
"""
