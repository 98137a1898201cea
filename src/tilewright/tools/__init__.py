"""What works on the compiler as a user would: searching for faults, measuring, tuning."""
