"""The supervisor's view of its workers: who lives, who is overdue, who failed, and what the run ends with."""
