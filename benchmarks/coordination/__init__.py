"""What it costs and brings that workers and servers tell each other what happens: wake-ups, statements, packets."""
