"""What people look at: the live display and the HTML report."""
