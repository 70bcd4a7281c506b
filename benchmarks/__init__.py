"""What the storage engine, one server and several cost, as figures from one run. Speed is never asserted in tests."""
