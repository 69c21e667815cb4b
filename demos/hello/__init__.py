"""The smallest agent: it says hello to its kernel and hears its own words come back."""
