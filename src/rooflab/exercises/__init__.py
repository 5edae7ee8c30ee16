"""The checks of each exercise: one module per exercise, holding its questions, right answers and known wrong ones."""
