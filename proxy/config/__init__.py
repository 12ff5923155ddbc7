"""From flags, environment and files to one frozen `Config`, or a list of every error.

options ─▶ option_types ─▶ values                     each option once, and the form of its value (host_names)
toml_file, quotas_file ─▶ checks, ports ─▶ config     the options together, or an `errors` list
upstream ─▶ client_file ─▶ client_settings            connections to brokers: the options together, the client's file
java_properties                                       the text of that file
usage                                                 usage records: the options together
listener_ssl                                          TLS from clients: the options together
fingerprints                                          whether files may have changed
cautions ◀─ floor                                     what is allowed but most likely not meant
exemptions                                            what is exempt, in words
limits_help, json_schema                              the keys of SPEC, for the help; all keys, for editors
"""
