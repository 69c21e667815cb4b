"""A pipeline of workers that is right under each of five faults."""
