"""Tables, plots and an HTML page from run folders.

`runs` reads run folders, `frame` makes a data frame of them (a row a run), `tables`, `plots` and
`curves` group and draw it, and `content` puts the report together. To add a column, write a
function of a run and a line in `frame.COLUMNS`.
"""
