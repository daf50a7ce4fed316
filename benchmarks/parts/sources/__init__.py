"""What `structure` counts.

class_table    all classes of some packages, as their sources define them
decision_path  modules and calls from a closed window to a published plan
"""
