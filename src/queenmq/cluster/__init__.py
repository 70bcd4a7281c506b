"""Many workers and servers as one: what they tell each other, and what each remembers of it."""
