"""What a worker and the supervisor of its node tell each other, in files. Standard library only."""
