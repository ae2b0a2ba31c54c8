"""Labs in which learners build the tools of this project, and the checks of what they wrote."""
