"""The Nessie lake kind: every ref of one server, its history as the log of states that retention
walks.
"""
