"""What checkpoints hold. In reading order:

checkpoint    positions, and checkpoints on disk
saved_fields  reads a checkpoint field by field
"""
