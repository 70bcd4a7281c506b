"""The HTTP interface: a protocol class for the hot routes, Starlette for the others."""
