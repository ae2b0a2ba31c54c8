"""The one comparer: is the candidate faster, as accurate, smaller? With intervals."""
