"""What a user types.

cli       the entry point: signals first, then the command line      commands  one function for each command
page_commands    those that ask a running proxy for a page
quotas_commands  the commands below `quotas`
quotas_topic     what these do with the topic of quotas
check     tries what a proxy needs before a client connects          manual    the man page and shell completions
"""
