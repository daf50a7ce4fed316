"""The roles of a job: name, place, command line and environment of each, its GPU, its ports and its certificate."""
