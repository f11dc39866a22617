"""Snapshots, durable saves and restore. `manager.build_checkpointer` is the way in.

`shm`, `folder`, `record` and `listing` need neither torch nor NVRx, so nothing is imported here.
"""
