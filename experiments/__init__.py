"""The paper's experiments. Nothing in src/ imports this; each of these builds on those above it.

datasets    data sets as arrays, from whatever a person has; data: by name, on a device
training    the paper's networks, and how they are trained
settings    what is trained on what, what is forgotten, and how large everything is
search      where the next trial of a baseline goes; trials: what is turned for each
running     jobs, the folder they are kept in, and what is read off a network
ways        the ways to forget that the tables compare, and how the settings of each were found
documents   from outcomes to documents, and from documents to tables and figures

table1 … table4_tiny, class_smallvgg, incremental_long, gamma, layers, epochs, attacks
            one file a table or figure: its jobs, and its document (poisoning: what table 4 and its sister share)
reproduce   runs experiments by name: ``unweave reproduce`` ends up there
pages       docs/reproduction.md from results/*.json
ensemble    many AllCNNs, for the example of docs/audit.md
"""
