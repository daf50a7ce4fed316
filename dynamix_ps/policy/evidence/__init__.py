"""A plan needs evidence: what a policy measures must exceed the scatter of the measurements. In reading order:

joined_windows  windows that are too short to measure become one
scatter         how much measurements differ that should be equal
speeds          how fast workers compute, and how much that scatters
claims          which claims of a proposal exceed it
trial           whether a new plan has made training slower
weighed         a policy whose proposals pass only with evidence
"""
