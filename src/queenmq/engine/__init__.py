"""Between HTTP and storage: requests are gathered, flushed together, and answered one by one."""
