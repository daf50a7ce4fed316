"""Workers of different speed on one machine: their speeds, and CPU quotas by control groups."""
