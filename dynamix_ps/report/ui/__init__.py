"""`dynamix ui`: the runs of a folder in a browser. In reading order:

site          which page is at which address
sampled_lines what is read of a run, however long it is
"""
