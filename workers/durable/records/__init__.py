"""Records of runs that a program executes itself: their data, stored form, delta and plans."""
