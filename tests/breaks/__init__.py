"""Small breaks of central lines, each with the tests that must catch it. `python -m tests.breaks` tries them.

breaks.yaml  what is broken, and by which tests that is caught
catalogue    reads the breaks, and finds their lines
work_copy    a copy of the tree, in which one line after the other is broken
"""
