"""One HTML page with the table, figures, rollouts, cost and provenance of an experiment.

`trb report` calls `page.write_report`, which writes report.html. `html`, `texts`, `timeline` and
`assets` serve all sections, and each other Python file makes one or two of them. `chart`,
`comparison` and `samples` hold the data of the scripts `curves.js`, `comparison.js` and
`samples.js`.
"""
