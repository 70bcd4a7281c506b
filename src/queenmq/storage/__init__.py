"""The only PostgreSQL code: pool, migrations, and typed calls of the stored procedures."""
