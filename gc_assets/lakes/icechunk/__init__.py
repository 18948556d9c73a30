"""The lake kind of Icechunk repositories of spec version 1."""
