"""What each op of StableHLO becomes, a file for each family."""
