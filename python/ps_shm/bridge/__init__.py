"""A bridge between the jobs of several boxes: `python -m ps_shm.bridge`, one process beside each job.

The bridges exchange what their boxes have done since the last round by torch.distributed, and give it to their jobs. No
worker waits for the network, and no box for another one. docs/boxes.md describes it.
"""
