"""report.html: a run on one self-contained page; and two runs on one. In reading order:

run_page    the page of a run
two_runs    the page that compares two
story       what it says in words and large figures
charts      what its charts show
html_text   HTML from text
page.css    how it looks: on a screen, light or dark, on a phone, on paper
page.js     draws the charts, and shows values under the pointer
"""
