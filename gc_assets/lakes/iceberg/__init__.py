"""The tables of one pyiceberg catalog as a lake kind."""
