"""The public surface as one text: what clients, scripts, data folders and dashboards rely on.

Every section is generated from the code: by introspection, from literals in its syntax trees, or by
a server in this process. No line names a module, and a line names a class only where the name goes
over the wire, so moves and renames inside leave the text unchanged.
"""
