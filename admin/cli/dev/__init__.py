"""`fnctl dev`: a Python function on this machine, without a server, started anew at changes."""
