"""The measurements, one file for each subject."""
