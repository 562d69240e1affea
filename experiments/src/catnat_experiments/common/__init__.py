"""What several experiments share: parameterizations, data, how a rate is selected."""
