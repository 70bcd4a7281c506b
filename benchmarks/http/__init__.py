"""What the whole server costs per message, over HTTP: real `queen serve` processes on a PostgreSQL of their own."""
