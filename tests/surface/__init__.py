"""The public surface as one text: whatever clients, scripts, data folders and dashboards rely on.

Every section is read out of the running code. None has the name of a module, and of a class only
where it goes over the wire, so a change inside leaves the text as it is.
"""
