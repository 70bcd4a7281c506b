"""What travels: names, payloads and their limits. Imports nothing of ours."""
