"""What launcher and agents tell each other, and the files of the run folder that agents send while they grow."""
