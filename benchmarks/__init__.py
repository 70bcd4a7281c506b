"""What the storage engine and the whole server cost, as ratios from one run. Speed is never asserted in tests."""
