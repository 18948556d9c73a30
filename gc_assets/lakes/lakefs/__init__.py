"""The lakeFS lake kind: a lake is one repository on a lakeFS server."""
