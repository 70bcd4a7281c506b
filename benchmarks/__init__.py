"""What the storage engine costs, as ratios from one run. Speed is measured here and never asserted in tests."""
