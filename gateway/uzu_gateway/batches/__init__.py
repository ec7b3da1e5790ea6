"""Files that clients upload, and batches of requests that run from them and outlive the process."""
