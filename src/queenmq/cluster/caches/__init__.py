"""What a server remembers of what the others told it. All of it is advice, and all of it may be forgotten."""
