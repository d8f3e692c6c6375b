"""One HTML page with the scores, figures, responses, cost and provenance of an experiment.

`page.write_report` writes report.html from `templates/`, `page.css` and `page.js`. `scores`,
`samples` and `background` turn facts into the texts, sheets and points that the templates show.
"""
