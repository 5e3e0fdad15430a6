"""What people see of a run: the page of each stage in Prefect, and the HTML report of each output."""
