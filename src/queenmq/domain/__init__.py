"""Pure decisions: ids, how a push is packed into segments, queue options. No I/O."""
