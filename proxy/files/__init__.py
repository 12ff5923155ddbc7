"""Files that are read again when they change.

file_watch     reads files again and applies them whole or not at all
tls            contexts of connections, made of such files
certificates   which certificates of a file clients verify, and what is wrong with the file
"""
