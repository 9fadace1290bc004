"""The paper's numbers beside ours (Pang et al., 2022, arXiv 2105.14785): 13 tables and the numbers in its text.

published/       every published number, one line for each cell; index.csv: printed names and LaTeX labels;
                 runs.csv: trainings
names.toml       the paper's names -> rrbench's names
tables.toml      lines and columns of each table
tolerances.toml  how far a measured cell may be from its published value
footnotes.toml   what a reader must know to compare a cell, each with its evidence
"""
