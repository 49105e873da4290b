"""The reference agent loop: what writes the logs that the rest of the package reads.

`loop` is the part to read first. Nothing here imports the analysis, and nothing heavy is
imported before it is used.
"""
