"""The paper's numbers beside ours (Pang et al., 2022, arXiv 2105.14785): 13 tables and the numbers of its text.

published/       every published number, one line a cell; index.csv printed names and LaTeX labels; runs.csv trainings
names.toml       what the paper calls a thing -> what rrbench calls it
tables.toml      lines and columns of each table
tolerances.toml  how far a measured cell may lie from its published value
footnotes.toml   what must be known to compare a cell, each with its evidence
"""
