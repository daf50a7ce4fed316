"""What people see of a run, while it trains and afterwards. In reading order:

recorder        writes what all roles tell into the tables of the run folder
live            the table in the terminal
summary         the result in figures
gain            what a run gained by changing the batch sizes
fewer_bytes     what fewer bytes on the wire would save, and which wire was chosen
estimated_rate  how fast it would train with other sizes
resume          where a run went on from, and the command that goes on from its newest checkpoint
summary_text    the same for reading
run_report      all of this from a run folder alone
plots           pictures
page            the run on one page for a browser
run_list        the runs of a folder, each in a line
tensorboard     curves
metric_rows     what each metric is, and where it is exported
prometheus      the newest values as gauges and counters
exposition      the text that Prometheus reads
http_server     answers Prometheus, and browsers
ui              the runs of a folder in a browser, live
"""
