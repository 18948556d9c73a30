"""The lakeFS lake kind: one repository on a server."""
