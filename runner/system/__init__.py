"""The operating system as every room uses it: processes, durable files, locks, ports. Standard library only."""
