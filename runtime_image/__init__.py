"""Code that runs inside a replica. Imports no other package of this project; `contract` and `link`
are imported by all the others."""
