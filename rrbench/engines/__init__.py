"""Where units of work are done: in this process, or by the workers of a Ray cluster."""
