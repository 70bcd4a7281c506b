"""The load generator: one process that sends what official clients send, checks every answer, and costs little.

`render` makes requests as bytes, `connection` cuts answers out of a socket, `clients` are the pushers and consumers,
`jobs` the runs made of them, and `process` runs a job beside the benchmark so that its CPU is nobody else's.
"""
