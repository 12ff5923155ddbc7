"""From flags, environment and files to one frozen `Config`, or a list of every error.

options ─▶ option_types ─▶ values                     each option once, and the form of its value (host_names)
toml_file, quotas_file ─▶ checks, ports ─▶ config     the options together, or an `errors` list
usage                                                 usage records: the options together
client_file ─▶ client_settings                        how the proxy connects to brokers: the file, and its final form
cautions ◀─ floor                                     what is allowed but most likely not meant
exemptions                                            what is exempt, in words
limits_help                                           the keys of SPEC, for the help
"""
