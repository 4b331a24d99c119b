"""Tables, plots and an HTML page from run folders.

`runs` finds run folders, and `run` reads one and computes its columns. `frame` makes a data frame
with one row per run. `scores` makes observations from it, one row per run and metric, and groups
them into means. `tables`, `plots` and `curves` show them, `defaults` chooses what to show if nobody
asked for anything, and `content` puts the report together. To add a column, see `run`.
"""
