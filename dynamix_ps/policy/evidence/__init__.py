"""A plan needs evidence: what a policy measures must exceed the scatter of the measurements. In reading order:

measurements    what windows measure, joined where they are too short, and how much it scatters
claims          which claims of a proposal exceed that scatter
trial           whether a new plan has made training slower
weighed         a policy whose proposals pass only with evidence
"""
