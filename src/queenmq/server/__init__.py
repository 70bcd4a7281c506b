"""The composition root: settings, the database they describe, and the parts put together from them."""
