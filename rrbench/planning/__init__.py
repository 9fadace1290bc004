"""A request becomes cells, and cells become units of work. Pure: no file, no GPU."""
