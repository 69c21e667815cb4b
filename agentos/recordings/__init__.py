"""Recordings: what an agent asks of the kernel and what it is answered, life by life, in files that outlive it."""
