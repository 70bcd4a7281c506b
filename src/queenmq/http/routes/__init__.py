"""The routes that Starlette answers, one file per kind, and the table of all of them."""
